"""The results tree: which attempts there are, and which attempt of each run is wanted."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.contract.files import write_atomically
from dtbench.study.matrix import at
from harness.contract.errors import SpecError, nearest
from harness.contract.outcome import OUTCOMES
from harness.contract.spec import RunSpec

INTERRUPTED = frozenset({"user_cancelled"})
"""Outcomes that say nothing about the config: the same command again simply launches the next attempt."""

_ATTEMPT = re.compile(r"a[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt on disk."""

    number: int
    record: Path


def attempts(folder: Path) -> list[Attempt]:
    """The attempts below a run's folder that left a record, oldest first."""
    return [Attempt(number, folder / f"a{number}" / "record.json") for number in _numbers(str(folder))]


def _numbers(folder: str) -> list[int]:
    # Text and no paths: asked for every run of a study on every call.
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (int(name[1:]) for name in names if _ATTEMPT.fullmatch(name))
    return sorted(number for number in found if os.path.isfile(f"{folder}/a{number}/record.json"))  # noqa: PTH113


def interrupted(record: Path) -> bool:
    """Whether a record's outcome is one of INTERRUPTED; one in which none of the words occurs is not parsed."""
    try:
        text = record.read_bytes()
        if not any(f'"{outcome}"'.encode() in text for outcome in INTERRUPTED):
            return False
        plain = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(plain, dict) and plain.get("outcome") in INTERRUPTED


def parse_rerun(value: Any) -> frozenset[str]:
    """Outcomes that `rerun=` selects. Raises SpecError for a word that is no outcome, `failed` or `all`."""
    if value is None or value == "":
        return frozenset()
    words = value if isinstance(value, list | tuple) else str(value).split(",")
    selected: set[str] = set()
    allowed = ("failed", "all", *OUTCOMES)
    for word in words:
        name = str(word).strip()
        if name not in allowed:
            raise SpecError(f"rerun={value}: found {name!r}; {nearest(name, allowed)}")
        if name in ("failed", "all"):
            selected |= OUTCOMES.keys() - ({"ok"} if name == "failed" else set())
        else:
            selected.add(name)
    return frozenset(selected)


def run_folder(results: Path, spec: RunSpec) -> Path:
    """The folder of all attempts of a run."""
    return (results / spec.path()).parent


def wanted(results: Path, runs: Iterable[RunSpec], again: frozenset[str] = frozenset()) -> dict[str, RunSpec]:
    """Folder below `results` -> spec of each run's attempt that should exist.

    That is its last attempt, or the first, or the next one if that was interrupted or the run's folder is in `again`.
    """
    plan = {}
    for spec in runs:
        run = spec.path().rpartition("/")[0]
        numbers = _numbers(f"{results}/{run}")
        number = numbers[-1] if numbers else 1
        if numbers and (run in again or interrupted(results / run / f"a{number}" / "record.json")):
            number += 1
        plan[f"{run}/a{number}"] = spec if number == spec.identity.attempt else at(spec, attempt=number)
    return plan


def absent(records: Iterable[str]) -> list[str]:
    """The records that are not there."""
    return [record for record in records if not os.path.isfile(record)]  # noqa: PTH113


def lost_figures(report: str) -> list[str]:
    """The figures that a report links to and that are not there; none without a report."""
    folder = os.path.dirname(report)  # noqa: PTH120
    try:
        with open(report, encoding="utf-8") as file:
            names = dict.fromkeys(re.findall(r"\]\((figures/\w+\.svg)\)", file.read()))
    except (OSError, ValueError):
        return []
    return absent(f"{folder}/{name}" for name in names)


def newer(records: Iterable[str], output: str) -> list[str]:
    """The records that are not there or were written since `output` was; all of them without it."""
    made_s = _written_s(output)
    return [record for record in records if _written_s(record, float("inf")) > made_s]


def _written_s(path: str, absent_s: float = float("-inf")) -> float:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116
    except OSError:
        return absent_s


def missing(results: Path, plan: dict[str, RunSpec]) -> list[RunSpec]:
    """The wanted attempts that have no record yet."""
    return [spec for path, spec in plan.items() if not os.path.isfile(f"{results}/{path}/record.json")]  # noqa: PTH113


def write_plan(runs: Iterable[RunSpec], results: Path, again: frozenset[str] = frozenset()) -> None:
    """Write plan.json: the missing runs in the order to launch them."""
    specs = [spec.to_json() for spec in missing(results, wanted(results, runs, again))]
    write_atomically(results / "plan.json", json.dumps({"specs": specs}, indent=1) + "\n")
    print(f"{len(specs)} missing runs: {results / 'plan.json'}")
