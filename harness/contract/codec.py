"""JSON values <-> the contract's types: strict decoding, errors that name the dotted key, encoding and hashes.

Types are `msgspec.Struct`s; their constraints are in their annotations (`PositiveInt`, `Name`), so that the decoder
enforces and the JSON Schemas publish the same ones. What `harness/diagnosis` needs is a plain dataclass instead,
because that package runs on a bare Python.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import msgspec
from msgspec import Meta, Struct

from harness.contract.errors import SpecError, nearest, show

T = TypeVar("T")

LARGEST_INT = 2**63 - 1
LARGEST_FLOAT = sys.float_info.max
LONGEST_NAME = 63
"""Longest value of a Kubernetes label; file systems allow four times as many characters."""

Int = Annotated[int, Meta(ge=-LARGEST_INT - 1, le=LARGEST_INT)]
NotNegativeInt = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
PositiveInt = Annotated[int, Meta(ge=1, le=LARGEST_INT)]
Float = Annotated[float, Meta(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)]
"""A finite number; a field that may hold NaN is annotated `float`."""
NotNegativeFloat = Annotated[float, Meta(ge=0, le=LARGEST_FLOAT)]
PositiveFloat = Annotated[float, Meta(gt=0, le=LARGEST_FLOAT)]
# Python's $ also matches before a last line break; the look-ahead refuses one.
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$(?!\n)", max_length=LONGEST_NAME)]
"""A name that can be a folder, a label and part of a Job's name."""


def decode(kind: type[T], plain: Any, key: str = "") -> T:
    """Build `kind` from parsed JSON. Raises SpecError naming the dotted key, what was found and what is allowed."""
    try:
        found = msgspec.convert(plain, kind)
    except (msgspec.ValidationError, SpecError) as error:
        raise SpecError(_refusal(kind, plain, key, error)) from None
    _refuse_unknown(kind, plain, key)
    return found


def decode_some(kind: type[Struct], plain: dict[str, Any], key: str) -> dict[str, Any]:
    """Values for some fields of a Struct, each of its field's type. Raises SpecError naming the dotted key."""
    if unknown := _unknown(kind, plain, key):
        raise SpecError(unknown)
    return {name: decode((fields_of(kind) or {})[name], value, f"{key}.{name}") for name, value in plain.items()}


def decode_file(kind: type[T], path: Path, modern: Callable[[Any], Any] = lambda plain: plain) -> T:
    """Build `kind` from a JSON file; `modern` turns an older shape into today's. Raises SpecError naming the file."""
    plain = read_json(path)
    try:
        return decode(kind, modern(plain))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises SpecError naming the file and, for bad JSON, the place in it."""
    try:
        raw = path.read_bytes()
        try:
            return msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return json.loads(raw.decode())  # takes NaN, and says where the text is wrong
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


def check_plain(value: Any, key: str) -> None:
    """Refuse numbers that JSON cannot carry inside free-form values. Raises SpecError naming the dotted key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            check_plain(inner, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_plain(inner, f"{key}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{key}: found {value}, expected a finite number")
    elif isinstance(value, int) and not -LARGEST_INT <= value <= LARGEST_INT:
        raise SpecError(f"{key}: found {show(value)}, expected a number of at most 64 bits")


# msgspec's errors name the place by its own path and leave out the value, so we look for the value ourselves.


def _refusal(kind: Any, value: Any, key: str, error: Exception) -> str:
    """The error at the innermost value that does not fit its type."""
    if unknown := _unknown(kind, value, key):
        return unknown
    for part in _parts(kind, value, key):
        try:
            msgspec.convert(part[1], part[0])
        except (msgspec.ValidationError, SpecError) as inner:
            return _refusal(*part, inner)
    if isinstance(error, SpecError):  # a rule of the class itself, about several of its fields
        return f"{key}.{error}" if key else str(error)
    for option in _options(kind):
        for name in (fields_of(option) or {}) if isinstance(value, dict) else {}:
            if name not in value and name not in defaults_of(option):
                return f"{_join(key, name)}: missing; {option.__name__} needs it"
        if typing.get_origin(option) is Literal:
            return f"{key}: found {show(value)}; {nearest(str(value), tuple(map(str, typing.get_args(option))))}"
    if "`array` of length >= 1" in str(error):
        return f"{key}: found an empty list, expected at least one"
    return f"{key or kind.__name__}: found {show(value)}, expected {_expected(kind, value, str(error))}"


_WORDS = {"object": "a mapping", "array": "a list"}
_BOUNDS = {">=": "{} or more", ">": "more than {}", "<=": "at most {}", "<": "less than {}"}


def _expected(kind: Any, value: Any, message: str) -> str:
    """What msgspec's message says was expected, in our words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if float in _options(kind) and not -LARGEST_FLOAT <= value <= LARGEST_FLOAT:
            return "a finite number"
        if int in _options(kind) and not -LARGEST_INT <= value <= LARGEST_INT:
            return "a number of at most 64 bits"
    if exact := re.search(r"`array` of length (\d+)", message):
        return f"a list of {exact[1]}"
    if isinstance(value, str) and ("matching regex" in message or "of length" in message):
        return f"lower-case letters, digits and inner . _ -, at most {LONGEST_NAME}"
    if bound := re.search(r"` (>=|>|<=|<) (\S+)", message):
        return _BOUNDS[bound[1]].format(bound[2].removesuffix(".0"))
    named = re.search(r"Expected `(.*?)(?: \| null)?`", message)
    return _WORDS.get(named[1], named[1]) if named else message


def _parts(kind: Any, value: Any, key: str) -> Iterator[tuple[Any, Any, str]]:
    """Type, value and key of everything directly inside a value."""
    for option in _options(kind):
        origin, arguments = typing.get_origin(option), typing.get_args(option)
        if isinstance(value, dict) and (fields := fields_of(option)):
            yield from ((fields[name], inner, _join(key, name)) for name, inner in value.items() if name in fields)
        elif isinstance(value, dict) and origin is dict:
            yield from ((arguments[1], inner, _join(key, str(name))) for name, inner in value.items())
        elif isinstance(value, list | tuple) and origin in (list, tuple):
            kinds = itertools.repeat(arguments[0]) if arguments[1:] in ((), (...,)) else arguments
            yield from ((kind, inner, f"{key}[{i}]") for i, (kind, inner) in enumerate(zip(kinds, value, strict=False)))


def _unknown(kind: Any, value: Any, key: str) -> str | None:
    for option in _options(kind):
        if isinstance(value, dict) and (fields := fields_of(option)):
            for name in value:
                if name not in fields:
                    return f"{_join(key, str(name))}: unknown key; {nearest(str(name), tuple(fields))}"
    return None


def _refuse_unknown(kind: Any, value: Any, key: str) -> None:
    """Refuse unknown keys of dataclasses, which msgspec ignores; it refuses those of Structs itself."""
    if _holds_dataclass(kind):
        if unknown := _unknown(kind, value, key):
            raise SpecError(unknown)
        for part in _parts(kind, value, key):
            _refuse_unknown(*part)


@functools.cache
def _holds_dataclass(kind: Any) -> bool:
    return any(
        dataclasses.is_dataclass(option)
        or any(map(_holds_dataclass, (fields_of(option) or {}).values() or typing.get_args(option)))
        for option in _options(kind)
        if typing.get_origin(option) is not Literal
    )


@functools.cache
def _options(kind: Any) -> tuple[Any, ...]:
    """The types that a field may hold, without `Annotated` and None."""
    if typing.get_origin(kind) is Annotated:
        return _options(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (Union, types.UnionType):
        return tuple(o for a in typing.get_args(kind) if a is not type(None) for o in _options(a))
    return (kind,)


@functools.cache
def fields_of(kind: Any) -> dict[str, Any] | None:
    """Name -> type of every field of a Struct or dataclass; None for other types."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {field.name: field.type for field in msgspec.structs.fields(kind)}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return None


@functools.cache
def defaults_of(kind: Any) -> dict[str, Any]:
    """Name -> default of every optional field of a Struct or dataclass; nobody may write to the values."""
    fields = msgspec.structs.fields(kind) if issubclass(kind, Struct) else dataclasses.fields(kind)
    none = (msgspec.NODEFAULT, dataclasses.MISSING)
    given = {f.name: f.default if f.default_factory in none else f.default_factory() for f in fields}
    return {name: default for name, default in given.items() if default not in none}


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def encode(value: Any) -> Any:
    """Turn Structs and dataclasses into plain JSON values; tuples become lists."""
    if (fields := fields_of(value.__class__)) is not None:
        return {name: encode(getattr(value, name)) for name in fields}
    if isinstance(value, dict):
        return {str(name): encode(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encode(inner) for inner in value]
    return value


def canonical(value: Any) -> str:
    """Canonical JSON, so that equal values give equal texts: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """sha256 of the canonical JSON, 64 hexadecimal digits."""
    return digest_of_text(canonical(value))


def digest_of_text(text: str) -> str:
    """sha256 of a text, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def essence(value: Any) -> Any:
    """Like `encode`, without the fields of a Struct that have their default. Hashes are computed from this, so a new
    field does not change the hashes of stored specs. In return, a default must never change its meaning once it is
    released.
    """
    if isinstance(value, Struct):
        return {name: essence(inner) for name, inner in _stated(value)}
    if isinstance(value, tuple):
        return [essence(inner) for inner in value]
    return value


def _stated(struct: Struct) -> Iterator[tuple[str, Any]]:
    """Name and value of every field that differs from its default."""
    defaults = defaults_of(type(struct))
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if name not in defaults or value != defaults[name]:
            yield name, value


def essential_parts(struct: Struct) -> dict[str, str]:
    """Canonical JSON of the `essence` of each field, by its name.

    Texts of fields that are Structs themselves are kept: the runs of a study share all but one of theirs.
    """
    return {
        name: _kept_text(value) if isinstance(value, Struct) else canonical(essence(value))
        for name, value in _stated(struct)
    }


_KEPT: dict[int, tuple[Struct, str]] = {}


def _kept_text(part: Struct) -> str:
    # The object is kept beside its text, because otherwise a new object could get the same id.
    if id(part) not in _KEPT:
        if len(_KEPT) >= 4096:
            _KEPT.clear()
        _KEPT[id(part)] = part, canonical(essence(part))
    return _KEPT[id(part)][1]


def object_text(parts: dict[str, str]) -> str:
    """Canonical JSON of an object whose values are given as canonical JSON."""
    return f"{{{','.join(f'{json.dumps(name)}:{parts[name]}' for name in sorted(parts))}}}"
