"""JSON Schemas of what people and tools read and write, generated from the types that decode them.

`python -m dtbench.study.schema ROOT` writes workflow/schemas/; a test holds them fresh.
"""

import ast
import inspect
import json
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dtbench.study.definition import Study
from dtbench.study.platforms import PlatformEntry
from harness.contract.codec import LARGEST_FLOAT, LARGEST_INT, Name, defaults_of, encode, fields_of
from harness.contract.files import write_atomically
from harness.contract.outcome import Diagnosis
from harness.contract.record import Record
from harness.contract.spec import RunSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_UNITS = {
    "_per_s": " per second",
    "_bytes": ", in bytes",
    "_gib": ", in GiB",
    "_s": ", in seconds",
    "_hz": ", in hertz",
}
"""End of a field's name -> how a sentence says it; the first that fits counts."""
LIMITS = (LARGEST_INT, -LARGEST_INT - 1, LARGEST_FLOAT, -LARGEST_FLOAT)
"""Bounds of the number types themselves, which no reader of a schema needs."""


def schema_of(kind: Any, title: str) -> dict[str, Any]:
    """The schema of a type, with a description of every key and the default of every optional one."""
    (root,), definitions = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    for owner in _classes(kind):
        body = definitions[owner.__name__]
        texts, defaults = field_texts(owner), defaults_of(owner)
        for name, found in body["properties"].items():
            described = texts.get(name) or _of_class(found, definitions) or _words(name)
            default = {"default": encode(defaults[name])} if name in defaults else {}
            body["properties"][name] = {"description": described} | _without_limits(found) | default
        body["additionalProperties"] = False
    return {"$schema": DIALECT, "title": title, **root, "$defs": dict(sorted(definitions.items()))}


def _classes(kind: Any) -> Iterator[Any]:
    """Every Struct and dataclass in a type."""
    if fields := fields_of(kind):
        yield kind
        for inner in fields.values():
            yield from _classes(inner)
    for inner in typing.get_args(kind):
        yield from _classes(inner)


def _without_limits(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_limits(inner) for inner in node]
    if isinstance(node, dict):
        return {key: _without_limits(inner) for key, inner in node.items() if inner not in LIMITS}
    return node


def field_texts(cls: type[Any]) -> dict[str, str]:
    """Field name -> the docstring under it, those of base classes included; `inspect` does not find them."""
    texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not fields_of(owner):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                texts.pop(field.target.id, None)
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def _of_class(found: dict[str, Any], definitions: dict[str, Any]) -> str | None:
    """What the class says of itself, for a field that holds one, or a list of them."""
    options = [found, found.get("items", {}), *found.get("anyOf", ())]
    name = next((o["$ref"].rpartition("/")[2] for o in options if "$ref" in o), None)
    return definitions[name].get("description") if name else None


def _words(name: str) -> str:
    """A field that says it all by its name, as a sentence."""
    for unit, said in _UNITS.items():
        if name.endswith(unit):
            return f"{name.removesuffix(unit).replace('_', ' ').capitalize()}{said}."
    return f"{name.replace('_', ' ').capitalize()}."


def schemas() -> dict[str, dict[str, Any]]:
    """File name -> schema."""
    return {
        "study": _short_forms(schema_of(Study, "Study")),
        "platforms": _by_name(schema_of(dict[str, PlatformEntry], "Platforms")),
        "spec": schema_of(RunSpec, "Run spec"),
        "record": schema_of(Record, "Record"),
        "diagnosis": schema_of(Diagnosis, "Diagnosis"),
    }


def _short_forms(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow what a study may say in short: no name, own platforms, a config by its name, one name for a list of one."""
    study = schema["$defs"]["Study"]
    study["required"].remove("name")
    schema["$defs"] |= schema_of(PlatformEntry, "Platform")["$defs"]
    study["properties"]["platforms"]["items"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/PlatformEntry"}]}
    configs = study["properties"]["configs"]
    configs["items"] = {"anyOf": [{"type": "string"}, configs["items"]]}
    frontier = study["properties"]["frontier"]
    frontier["anyOf"] = [{"type": frontier.pop("type"), "items": frontier["items"]}, frontier.pop("items")]
    for name in ("Cells", "Exclusion", "OverrideAt", "FrontierChoice"):
        for axis in ("platform", "config", "arm"):
            schema["$defs"][name]["properties"][axis]["anyOf"].append({"type": "string"})
    return schema


def _by_name(schema: dict[str, Any]) -> dict[str, Any]:
    """A platform's name is its key in the file."""
    entry = schema["$defs"]["PlatformEntry"]
    entry["required"].remove("name")
    del entry["properties"]["name"]
    return schema | {"description": "Platforms by name.", "propertyNames": msgspec.json.schema(Name)}


def main(root: Path) -> None:
    """Write every schema."""
    for name, schema in schemas().items():
        write_atomically(root / "workflow" / "schemas" / f"{name}.schema.json", json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
