"""The committed schemas: fresh, complete, and in agreement with what the code accepts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from dtbench.study.files import read_mapping
from dtbench.study.matrix import load_matrix
from dtbench.study.schema import schemas

from harness.contract.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "workflow" / "schemas"
NAMES = ("study", "platforms", "spec", "record", "diagnosis")


def load(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text())
    return schema


def objects(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "", schema
    if isinstance(schema.get("additionalProperties"), dict):
        yield "*", schema["additionalProperties"]
    yield from schema["$defs"].items()


def test_the_committed_schemas_are_what_the_code_says() -> None:
    for name, schema in schemas().items():
        assert load(name) == json.loads(json.dumps(schema)), f"{name}: run python -m dtbench.study.schema ."


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_described_and_every_default_valid(name: str) -> None:
    schema = load(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    seen = 0
    for owner, found in objects(schema):
        for key, body in found.get("properties", {}).items():
            assert len(body["description"]) > 3, f"{owner}.{key}"
            validator = jsonschema.Draft202012Validator(body | {"$defs": schema["$defs"]})
            assert ("default" in body) == (key not in found["required"]) or key == "name", f"{owner}.{key}"
            assert "default" not in body or validator.is_valid(body["default"]), f"{owner}.{key}: {body['default']!r}"
            seen += 1
    assert seen > 5


def test_the_shipped_studies_hold_the_schema() -> None:
    study = jsonschema.Draft202012Validator(load("study"))
    for path in (ROOT / "config").glob("*.yaml"):
        if path.stem not in ("platforms", "prices"):
            study.validate(read_mapping(path))
    jsonschema.Draft202012Validator(load("platforms")).validate(read_mapping(ROOT / "config/platforms.yaml"))


def test_specs_hold_their_schema() -> None:
    validator = jsonschema.Draft202012Validator(load("spec"))
    for name in ("quick", "h200-x2-2026"):
        for run in load_matrix(name, ROOT).runs[:20]:
            validator.validate(json.loads(json.dumps(run.to_json())))


@pytest.mark.parametrize(
    "text", [{"repeates": 2}, {"platforms": "cpu-x2"}, {"arms": ["match"]}, {"data": {"sequence": 1}}, {"configs": [3]}]
)
def test_the_study_schema_refuses_what_the_code_refuses(text: dict[str, Any]) -> None:
    assert list(jsonschema.Draft202012Validator(load("study")).iter_errors(text))


@pytest.mark.parametrize(
    "text",
    [
        "repeats: 0",
        "platforms: []",
        "data: {micro_batch: 0}",
        "data: {sequence_length: -1}",
        "protocol: {timed_steps: 0}",
        "protocol: {warmup_steps: -1}",
        "protocol: {deadline_s: 0}",
        "optimizer: {learning_rate: 0}",
        "optimizer: {clip_norm: -0.5}",
        "frontier: {limit: 0}",
        "faults: [{kind: segfalt}]",
    ],
)
def test_what_the_loader_refuses_the_schema_refuses_too(text: str, tmp_path: Path) -> None:
    good = {"platforms": ["cpu-x2"], "configs": ["ddp"], "arms": ["matched"], "model": {"name": "tiny"}}
    validator = jsonschema.Draft202012Validator(load("study"))
    validator.validate(good)
    bad = good | yaml.safe_load(text)
    assert not validator.is_valid(bad)
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(bad))
    key = next(iter(yaml.safe_load(text)))
    with pytest.raises(SpecError, match=key):
        load_matrix(str(path), ROOT)
