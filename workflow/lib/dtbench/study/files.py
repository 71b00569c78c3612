"""Reading what people write: YAML with its mistakes named; finding it by name."""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from harness.contract.errors import SpecError, nearest, show

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Safe YAML that refuses a key given twice, which YAML itself would let win silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise SpecError(f"line {key_node.start_mark.line + 1}: found a key that is a {type(key).__name__}")
            if key in seen:
                raise SpecError(f"line {key_node.start_mark.line + 1}: key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # a date with month 13, a number of 5000 digits
            tag = node.tag.rpartition(":")[2]
            raise SpecError(f"line {node.start_mark.line + 1}: found {node.value[:40]!r} as {tag}: {error}") from None


# YAML 1.1 wants a dot in a float; 1e-4 is what people write.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"), list("-+0123456789")
)


def read_mapping(path: Path) -> dict[str, Any]:
    """Parse a YAML file that must be a mapping. Raises SpecError naming the file, and the line of a syntax error."""
    try:
        plain = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise SpecError(f"{path}{place}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not YAML: {error}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply; expected a few levels of lists and mappings") from None
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    if plain is None:
        raise SpecError(f"{path}: found an empty file, expected a mapping of keys to values")
    if not isinstance(plain, dict):
        raise SpecError(f"{path}: found a {type(plain).__name__} at the top, expected a mapping of keys to values")
    for key in plain:
        if not isinstance(key, str):
            raise SpecError(f"{path}: found the key {key!r}, expected a text")
    return plain


def is_file(path: Path) -> bool:
    """Whether the file exists; False for a name of 300 characters, for which `Path.is_file` raises OSError."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """The same for a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def find_named(kind: str, name: str, folder: Path, suffix: str, skip: tuple[str, ...] = ()) -> Path:
    """The file of that name in a folder. Raises SpecError listing what there is."""
    path = folder / f"{name}{suffix}"
    if name not in skip and is_file(path):
        return path
    available = sorted({p.name.removesuffix(suffix) for p in folder.glob(f"*{suffix}")} - set(skip))
    raise SpecError(f"{kind} {show(name)}: not found in {folder}; {nearest(name, available)}")
