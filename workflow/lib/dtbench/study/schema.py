"""JSON Schemas of what people and tools read and write, generated from the dataclasses that decode them.

`python -m dtbench.study.schema ROOT` writes workflow/schemas/; a test holds them fresh.
"""

import ast
import dataclasses
import inspect
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, Union

from dtbench.results.published import records
from dtbench.study.definition import Study
from dtbench.study.files import write_text
from dtbench.study.matrix import load_matrix
from dtbench.study.platforms import PlatformEntry
from harness.contract.bounds import LONGEST_NAME, NAME, NAMES, NOT_EMPTY, Bound, bounds_of
from harness.contract.codec import encode
from harness.contract.diagnosis import Diagnosis
from harness.contract.record import Record
from harness.contract.spec import RunSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAME = {"pattern": f"^{NAME}$", "maxLength": LONGEST_NAME}
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(cls: type[Any], title: str, example: Any) -> dict[str, Any]:
    """The schema of a dataclass tree. A key that has no default of its own gets the example's value as `default`."""
    definitions: dict[str, Any] = {}
    body = _object(cls, example, definitions)
    return {"$schema": DIALECT, "title": title, **body, "$defs": dict(sorted(definitions.items()))}


def _object(cls: type[Any], example: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, texts, bounds = typing.get_type_hints(cls), field_texts(cls), bounds_of(cls)
    properties: dict[str, Any] = {}
    required = []
    for field in dataclasses.fields(cls):
        value = getattr(example, field.name, None)
        default = _default(field, value, hints[field.name])
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
        kind = _type(hints[field.name], value, definitions)
        if field.name in bounds:
            kind = _bounded(kind, bounds[field.name])
            if default == 0 and (bounds[field.name].exclusive or bounds[field.name].least):
                default = 1  # a number without any default of its own, nor the example's
        if field.name in getattr(cls, NAMES, ()):
            kind = kind | _NAME
        if field.name in getattr(cls, NOT_EMPTY, ()):
            kind, default = kind | {"minItems": 1}, default or value
        described = texts.get(field.name) or _of_class(kind, definitions) or _words(field.name)
        properties[field.name] = {"description": described, "default": encode(default)} | kind
    return {
        "description": inspect.cleandoc(cls.__doc__ or ""),
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _bounded(kind: dict[str, Any], bound: Bound) -> dict[str, Any]:
    if "anyOf" in kind:
        return {"anyOf": [_bounded(option, bound) for option in kind["anyOf"]]}
    if kind["type"] == "integer":
        return kind | {"minimum": bound.least + bound.exclusive}
    if kind["type"] == "number":
        return kind | {"exclusiveMinimum" if bound.exclusive else "minimum": bound.least}
    return kind


def _default(field: "dataclasses.Field[Any]", example: Any, hint: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if example is not None or type(None) in typing.get_args(hint):
        return example
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)[0]
    return (typing.get_origin(hint) or hint)()


def _type(hint: Any, example: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin in (Union, types.UnionType):
        options = [{"type": "null"} if a is type(None) else _type(a, example, definitions) for a in arguments]
        return {"anyOf": options}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if dataclasses.is_dataclass(hint):
        return _reference(hint, example, definitions)
    if origin in (tuple, list):
        first = example[0] if isinstance(example, list | tuple) and example else None
        return {"type": "array", "items": _type(arguments[0], first, definitions)}
    if origin is dict or hint is dict:
        values = _type(arguments[1], None, definitions) if arguments else {}
        return {"type": "object", "additionalProperties": values or True}
    return {"type": SCALARS[hint]}


def _reference(cls: Any, example: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = _object(cls, example, definitions)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def field_texts(cls: type[Any]) -> dict[str, str]:
    """Field name -> the docstring under it, base classes included, as `inspect` finds no such thing by itself."""
    texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        (node,) = ast.parse(inspect.cleandoc(inspect.getsource(owner))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                texts.pop(field.target.id, None)
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def _of_class(kind: dict[str, Any], definitions: dict[str, Any]) -> str | None:
    """What the class says of itself, for a field that holds one, or a list of them."""
    options = [kind, kind.get("items", {}), *kind.get("anyOf", ())]
    name = next((o["$ref"].rpartition("/")[2] for o in options if "$ref" in o), None)
    return definitions[name].get("description") if name else None


def _words(name: str) -> str:
    """A field that says it all by its name, as a sentence."""
    for unit, said in (("_bytes", ", in bytes"), ("_gib", ", in GiB"), ("_s", ", in seconds"), ("_hz", ", in hertz")):
        if name.endswith(unit):
            return f"{name.removesuffix(unit).replace('_', ' ').capitalize()}{said}."
    return f"{name.replace('_', ' ').capitalize()}."


def schemas(root: Path) -> dict[str, dict[str, Any]]:
    """File name -> schema, with examples taken from the studies and records in the repository."""
    quick, published = load_matrix("quick", root), load_matrix("published", root)
    record = next(r for r in records(published) if r.measured is not None and len(r.tries) > 1)
    platform = quick.platforms[quick.study.platforms[0]]
    entry = schema_of(PlatformEntry, "Platform", platform)
    definitions = entry.pop("$defs")
    return {
        "study": _short_forms(schema_of(Study, "Study", quick.study)),
        "platforms": {
            "$schema": DIALECT,
            "title": "Platforms",
            "description": "Platforms by name.",
            "type": "object",
            "propertyNames": _NAME,
            "additionalProperties": {k: v for k, v in entry.items() if k not in ("$schema", "title")},
            "$defs": definitions,
        },
        "spec": schema_of(RunSpec, "Run spec", quick.runs[0]),
        "record": schema_of(Record, "Record", record),
        "diagnosis": schema_of(Diagnosis, "Diagnosis", record.diagnosis),
    }


def _short_forms(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow what `parse_study` allows: no name, a config by its name alone, one name in place of a list of one."""
    schema["required"].remove("name")
    configs = schema["properties"]["configs"]
    configs["items"] = {"anyOf": [{"type": "string"}, configs["items"]]}
    frontier = schema["properties"]["frontier"]
    frontier["anyOf"] = [{"type": frontier.pop("type"), "items": frontier["items"]}, frontier.pop("items")]
    for name in ("Cells", "Exclusion", "OverrideAt", "FrontierChoice"):
        for axis in ("platform", "config", "arm"):
            schema["$defs"][name]["properties"][axis]["anyOf"].append({"type": "string"})
    return schema


def main(root: Path) -> None:
    """Write every schema."""
    for name, schema in schemas(root).items():
        write_text(root / "workflow" / "schemas" / f"{name}.schema.json", json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
