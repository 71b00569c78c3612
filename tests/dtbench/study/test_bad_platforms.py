"""Platforms that nothing can run on are refused by file, name and key, as studies are."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from dtbench.study.platforms import load_platforms

from harness.contract.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]
GOOD = {"device": "cpu", "world_size": 2, "accelerator": "cpu", "interconnect": "loopback"}
PRICE = {"usd_per_hour": 1, "source": "https://example.com", "date": "2026-01-31"}
VALIDATOR = jsonschema.Draft202012Validator(json.loads((ROOT / "workflow/schemas/platforms.schema.json").read_text()))


def load(folder: Path, name: str, entry: dict[str, Any]) -> None:
    path = folder / "platforms.yaml"
    path.write_text(yaml.safe_dump({name: entry}))
    load_platforms(path)


def test_a_good_platform_is_good(tmp_path: Path) -> None:
    entry = GOOD | {"cpus": 4, "memory_gib": 0.5, "price": PRICE, "environment": {"OMP_NUM_THREADS": "2"}}
    load(tmp_path, "my-cpu.2", entry)
    VALIDATOR.validate({"my-cpu.2": entry})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpus": -4}, r"mine\.cpus: found -4, expected 1 or more"),
        ({"cpus": 0}, r"mine\.cpus: found 0, expected 1 or more"),
        ({"cpus": True}, r"mine\.cpus: found True, expected int"),
        ({"memory_gib": -3}, r"mine\.memory_gib: found -3, expected more than 0"),
        ({"memory_gib": 0}, r"mine\.memory_gib: found 0, expected more than 0"),
        ({"memory_gib": True}, r"mine\.memory_gib: found True, expected float"),
        ({"world_size": 0}, r"mine\.world_size: found 0, expected 1 or more"),
    ],
)
def test_an_impossible_number_is_refused_everywhere(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=rf"platforms\.yaml: {message}"):
        load(tmp_path, "mine", GOOD | changes)
    assert not VALIDATOR.is_valid({"mine": GOOD | changes})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400])
def test_memory_without_an_end_is_refused(tmp_path: Path, number: float) -> None:
    with pytest.raises(SpecError, match=r"mine\.memory_gib: found .*, expected a finite number"):
        load(tmp_path, "mine", GOOD | {"memory_gib": number})


@pytest.mark.parametrize("name", ["odd name/..", "..", "Mine", "a/b", "-x", "", 64 * "a"])
def test_an_invalid_platform_name_is_refused_everywhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        SpecError, match=rf"platforms\.yaml: name of a platform: found {re.escape(repr(name))}, expected"
    ):
        load(tmp_path, name, GOOD)
    assert not VALIDATOR.is_valid({name: GOOD})


@pytest.mark.parametrize("date", ["yesterday", "2026-02-30", "20260131", "2026-W05-6", "31.1.2026", ""])
def test_a_price_of_no_day_is_refused(tmp_path: Path, date: str) -> None:
    words = rf"mine\.price\.date: found {re.escape(repr(date))}, expected the day .* YYYY-MM-DD"
    with pytest.raises(SpecError, match=words):
        load(tmp_path, "mine", GOOD | {"price": PRICE | {"date": date}})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HF_TOKEN": "abc"}, r"mine\.environment\.HF_TOKEN: looks like a secret"),
        ({"MINE": "hf_" + 30 * "x"}, r"mine\.environment\.MINE: looks like a secret"),
        ({"A=B": "x"}, r"mine\.environment: found the name 'A=B'"),
        ({"A": "\0"}, r"mine\.environment\.A: found a NUL character"),
    ],
)
def test_variables_that_no_run_may_have_are_refused(tmp_path: Path, environment: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=rf"platforms\.yaml: {message}"):
        load(tmp_path, "mine", GOOD | {"environment": environment})
