"""Strict JSON <-> dataclass: unknown keys, wrong types and bad choices are refused by dotted key.

The contract is a tree of frozen dataclasses. `decode` builds one from parsed JSON and refuses
whatever the tree does not name, offering the nearest valid name; `encode` is its inverse;
`digest` hashes the canonical form.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar, Union

from harness.contract.errors import SpecError

T = TypeVar("T")


def nearest(found: str, allowed: list[str] | tuple[str, ...]) -> str:
    """Say which allowed name comes closest to `found`, as the tail of an error message."""
    close = difflib.get_close_matches(str(found), allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"allowed: {', '.join(dict.fromkeys(allowed))}{hint}"


_SCALARS = frozenset({str, int, float, bool, type(None)})
_EXACT = frozenset({str, bool})
"""Types whose values need no look once the type is right; a float may be infinite, an integer have 400 digits."""
_LARGEST = 2**64 - 1
"""Magnitude of an integer at most: the seeds' range. Beyond it arithmetic with floats and printing fail somewhere."""


def encode(value: Any) -> Any:
    """Turn a dataclass tree into plain JSON values; tuples become lists."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if (fields := _fields(kind)) is not None:
        return {name: encode(getattr(value, name)) for name, _ in fields}
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    return value


def essence(value: Any) -> Any:
    """Like `encode`, leaving out every dataclass field that has its default: what a hash is taken of.

    So a contract that gains a field (whose default means what was done before) keeps the hashes of
    all it has measured. The price: a default, once released, must never change its meaning.
    """
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if (fields := _fields(kind)) is not None:
        present = ((name, getattr(value, name), default) for name, default in fields)
        return {name: essence(v) for name, v, default in present if default is _REQUIRED or not bool(v == default)}
    if isinstance(value, dict):
        return {str(k): essence(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [essence(v) for v in value]
    return value


_REQUIRED = dataclasses.MISSING


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, Any], ...] | None:
    """Name and default of every field of a dataclass; None for any other class. Nobody writes to the defaults."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple(
        (f.name, f.default if f.default_factory is _REQUIRED else f.default_factory()) for f in dataclasses.fields(cls)
    )


def decode(cls: type[T], value: Any, key: str = "") -> T:
    """Build `cls` from parsed JSON. Raises SpecError naming the dotted key, what was found and what is allowed."""
    try:
        # A report decodes a thousand records: what every value is called is put together only for the one at fault.
        return _decode(cls, value, None)
    except SpecError:
        return _decode(cls, value, key)


def _decode(cls: type[T], value: Any, key: str | None) -> T:
    if not isinstance(value, dict):
        raise SpecError(f"{key or cls.__name__}: found {show(value)}, expected a mapping")
    hints = _hints(cls)  # type: ignore[arg-type]  # a class is hashable
    for name in value:
        if name not in hints:
            raise SpecError(f"{_join(key, name)}: unknown key; {nearest(name, tuple(hints))}")
    arguments = {}
    for name, default in _fields(cls) or ():  # type: ignore[arg-type]  # a class is hashable
        if name in value:
            arguments[name] = _convert(hints[name], value[name], _join(key, name))
        elif default is _REQUIRED:
            raise SpecError(f"{_join(key, name)}: missing; {cls.__name__} needs it")
    try:
        return cls(**arguments)
    except SpecError as error:
        raise SpecError(f"{key}.{error}" if key else str(error)) from None


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@functools.cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises SpecError naming the file and, for bad JSON, the place in it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except ValueError as error:  # an integer of 5000 digits
        raise SpecError(f"{path}: not JSON that can be read: {error}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply; expected a few levels of lists and mappings") from None


def canonical(value: Any) -> str:
    """One text for one meaning: sorted keys, no spaces, ASCII, no NaN."""
    return _text(encode(value))


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def essential_parts(value: Any) -> dict[str, str]:
    """Canonical JSON text of each field of a dataclass, `essence` of it, by the field's name.

    Fields that are dataclasses themselves are kept by identity: the runs of a study share all but one of theirs.
    """
    kind: Any = type(value)
    fields = _fields(kind) or ()
    present = ((name, getattr(value, name), default) for name, default in fields)
    return {n: _essential_text(v) for n, v, default in present if default is _REQUIRED or not bool(v == default)}


_KEPT: dict[int, tuple[Any, str]] = {}
_KEPT_MOST = 4096


def _essential_text(part: Any) -> str:
    kind: Any = type(part)
    if _fields(kind) is None:
        return _text(essence(part))
    # The object is kept beside its text, so that no other one can have its id.
    kept = _KEPT.get(id(part))
    if kept is None:
        if len(_KEPT) >= _KEPT_MOST:
            _KEPT.clear()
        kept = _KEPT[id(part)] = (part, _text(essence(part)))
    return kept[1]


def object_text(parts: dict[str, str]) -> str:
    """Canonical JSON of an object whose values are given as canonical JSON."""
    return f"{{{','.join(f'{_text(name)}:{parts[name]}' for name in sorted(parts))}}}"


def digest_of_text(text: str) -> str:
    """sha256 of a text, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest(value: Any) -> str:
    """sha256 of the canonical JSON, 64 hexadecimal digits."""
    return digest_of_text(_text(encode(value)))


def _join(key: str | None, name: str) -> str | None:
    if key is None:
        return None
    return f"{key}.{name}" if key else str(name)


def show(value: Any) -> str:
    """What was found, as an error message shows it: in one line that is not too long."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more digits than Python prints"
    return clip(text)


def clip(text: str) -> str:
    """A text, cut to what fits into an error message."""
    return text if len(text) <= 80 else text[:77] + "..."


def clip_path(path: object) -> str:
    """A path, cut in the middle to what fits into an error message: its end says the most."""
    text = str(path)
    return text if len(text) <= 240 else f"{text[:80]}...{text[-157:]}"


def _convert(hint: Any, value: Any, key: str | None) -> Any:
    kind: Any = type(value)
    if kind is hint and _is_fine(kind, value):
        return value
    origin, arguments = _shape(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        inner = [a for a in arguments if a is not type(None)]
        errors = []
        for option in inner:
            try:
                return _convert(option, value, key)
            except SpecError as error:
                errors.append(str(error))
        raise SpecError(errors[0])
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool) != any(isinstance(a, bool) for a in arguments):
            raise SpecError(f"{key}: found {show(value)}; {nearest(str(value), tuple(map(str, arguments)))}")
        return value
    if dataclasses.is_dataclass(hint):
        return _decode(hint, value, key)  # type: ignore[arg-type]
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise SpecError(f"{key}: found {show(value)}, expected a list")
        if _are_fine(origin, arguments[0], value):
            items = list(value)  # a thousand step times need no thousand keys
        else:
            items = [_convert(arguments[0], v, key and f"{key}[{i}]") for i, v in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin is dict or hint is dict:
        if not isinstance(value, dict):
            raise SpecError(f"{key}: found {show(value)}, expected a mapping")
        if not arguments:
            return value
        return {str(k): _convert(arguments[1], v, _join(key, str(k))) for k, v in value.items()}
    return _scalar(hint, value, key)


def _is_fine(kind: type[Any], value: Any) -> bool:
    return kind in _EXACT or (kind is int and -_LARGEST <= value <= _LARGEST)


def _are_fine(origin: Any, kind: Any, values: list[Any] | tuple[Any, ...]) -> bool:
    if kind is float and all(type(v) is float for v in values):
        # The losses of a run that diverged are a list; what a spec says is a tuple.
        return origin is list or all(map(math.isfinite, values))
    return kind in (int, str) and all(type(v) is kind and _is_fine(kind, v) for v in values)


def _scalar(hint: Any, value: Any, key: str | None) -> Any:
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return _finite(value, key)
    if (hint is int and isinstance(value, bool)) or not isinstance(value, hint):
        raise SpecError(f"{key}: found {show(value)}, expected {hint.__name__}")
    if hint is int and not -_LARGEST <= value <= _LARGEST:
        raise SpecError(f"{key}: found {show(value)}, expected a number of at most 64 bits")
    return _finite(value, key) if isinstance(value, float) else value


def _finite(value: int | float, key: str | None) -> float:
    try:
        if math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise SpecError(f"{key}: found {show(value)}, expected a finite number")


def check_plain(value: Any, key: str) -> None:
    """Refuse what JSON cannot carry in values that no class describes. Raises SpecError naming the dotted key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            check_plain(inner, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_plain(inner, f"{key}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{key}: found {value}, expected a finite number")
    elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        raise SpecError(f"{key}: found {show(value)}, expected a number of at most 64 bits")
