"""The results tree: which attempts there are, and which attempt of each run is wanted."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.files import write_text
from bench.matrix import at
from harness.contract.codec import nearest
from harness.contract.errors import SpecError
from harness.contract.outcome import OUTCOMES
from harness.contract.spec import RunSpec

UNREADABLE = "unreadable"
"""What `ended` says of a record that is no JSON object with an outcome: it counts as a failed attempt."""

INTERRUPTED = frozenset({"user_cancelled"})
"""Outcomes that say nothing about the config: the same command again simply launches the next attempt."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt on disk."""

    number: int
    record: Path


def attempts(folder: Path) -> list[Attempt]:
    """The attempts below a run's folder that left a record, oldest first."""
    found = []
    if folder.is_dir():
        for child in folder.iterdir():
            match = re.fullmatch(r"a([1-9][0-9]*)", child.name)
            if match and (child / "record.json").is_file():
                found.append(Attempt(int(match[1]), child / "record.json"))
    return sorted(found, key=lambda attempt: attempt.number)


def ended(record: Path) -> str:
    """The outcome a record names, without decoding the rest."""
    try:
        plain = json.loads(record.read_text(encoding="utf-8"))
        outcome = plain["outcome"]
    except (OSError, ValueError, KeyError, TypeError):
        return UNREADABLE
    return outcome if outcome in OUTCOMES else UNREADABLE


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
            selected |= {*OUTCOMES, UNREADABLE} - ({"ok"} if name == "failed" else set())
        else:
            selected.add(name)
    return frozenset(selected)


def run_folder(results: Path, spec: RunSpec) -> Path:
    """The folder of all attempts of a run."""
    return (results / spec.path()).parent


def wanted(results: Path, runs: Iterable[RunSpec], rerun: frozenset[str]) -> dict[str, RunSpec]:
    """Folder below `results` -> spec of each run's attempt that should exist.

    That is its last attempt, or the next one if that one's outcome is selected, or the first.
    """
    selected = rerun | INTERRUPTED
    plan = {}
    for spec in runs:
        folder = run_folder(results, spec)
        found = attempts(folder)
        number = found[-1].number + (ended(found[-1].record) in selected) if found else 1
        chosen = at(spec, attempt=number)
        plan[str((folder / f"a{number}").relative_to(results))] = chosen
    return plan


def missing(results: Path, plan: dict[str, RunSpec]) -> list[RunSpec]:
    """The wanted attempts that have no record yet."""
    return [spec for path, spec in plan.items() if not (results / path / "record.json").is_file()]


def write_plan(runs: Iterable[RunSpec], results: Path, rerun: frozenset[str]) -> None:
    """Write plan.json: the missing runs in the order to launch them."""
    specs = [spec.to_json() for spec in missing(results, wanted(results, runs, rerun))]
    write_text(results / "plan.json", json.dumps({"specs": specs}, indent=1) + "\n")
    print(f"{len(specs)} missing runs: {results / 'plan.json'}")
