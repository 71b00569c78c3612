"""The results tree: which attempts left a record, which attempt of each run is wanted, what the report was made from."""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from dtbench.study.matrix import Matrix
from dtbench.study.cell import Group, at
from harness.contract.codec import digest
from harness.contract.files import write_atomically
from harness.contract.spec import RunSpec

INTERRUPTED = frozenset({"user_cancelled"})
"""Outcomes that say nothing about the config: the same command again launches the next attempt."""
INDEX = "diagnoses.json"
"""Written last with every report: `sources` (what it was made from), `files` (what belongs to it) and `attempts` (today's
diagnosis of every failed attempt). Without a readable index the report is made again."""

_ATTEMPT = re.compile(r"a[1-9][0-9]*")

Recorded = dict[int, tuple[int, int]]
"""Number -> (size in bytes, last change in ns) of the record of each attempt that left one, oldest first."""
Found = dict[str, tuple[RunSpec, Recorded]]
"""Folder of a run below the study's results -> its spec as the study has it, and its recorded attempts."""


def scan(results: Path, runs: Iterable[RunSpec]) -> Found:
    """Look for the records of each run, in the order to launch the runs."""
    folders = ((_folder(spec), spec) for spec in runs)
    return {folder: (spec, _recorded(f"{results}/{folder}")) for folder, spec in folders}


def _recorded(folder: str) -> Recorded:
    # Text instead of paths: every call asks this of every run of the study.
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = {}
    for number in sorted(int(name[1:]) for name in names if _ATTEMPT.fullmatch(name)):
        record = f"{folder}/a{number}/record.json"
        if os.path.isfile(record):  # noqa: PTH113
            state = os.stat(record)  # noqa: PTH116
            found[number] = state.st_size, state.st_mtime_ns
    return found


def wanted(found: Found, results: Path, again: frozenset[str] = frozenset()) -> dict[str, RunSpec]:
    """Folder below `results` -> spec of each run's attempt that should exist.

    That is its last attempt, or the first, or the next one if that was interrupted or the run's folder is in `again`.
    """
    plan = {}
    for run, (spec, recorded) in found.items():
        number = max(recorded, default=1)
        if recorded and (run in again or _interrupted(f"{results}/{run}/a{number}/record.json")):
            number += 1
        plan[f"{run}/a{number}"] = spec if number == spec.identity.attempt else at(spec, attempt=number)
    return plan


def _interrupted(record: str) -> bool:
    """Whether a record's outcome is one of INTERRUPTED; one in which none of the words occurs is not parsed."""
    try:
        text = Path(record).read_bytes()
        if not any(f'"{outcome}"'.encode() in text for outcome in INTERRUPTED):
            return False
        plain = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(plain, dict) and plain.get("outcome") in INTERRUPTED


def missing(results: Path, plan: dict[str, RunSpec]) -> dict[str, RunSpec]:
    """The wanted attempts that have no record yet."""
    return {path: spec for path, spec in plan.items() if not os.path.isfile(f"{results}/{path}/record.json")}  # noqa: PTH113


def write_plan(results: Path, lacking: dict[str, RunSpec], groups: Iterable[Group]) -> None:
    """Write plan.json: the missing runs in the order to launch them, and `pairs`, the positions of runs that belong together.

    A run whose partners all have their records comes last: alone on a machine it makes no pair.
    """
    by_folder = {path.rpartition("/")[0]: spec for path, spec in lacking.items()}
    left = [(group, [by_folder[f] for f in map(_folder, group) if f in by_folder]) for group in groups]
    whole = [specs for group, specs in left if len(specs) > 1 or len(group) == 1]
    alone = [specs for group, specs in left if len(specs) == 1 < len(group)]
    specs: list[RunSpec] = []
    pairs: list[list[int]] = []
    for members in whole + alone:
        if len(members) > 1:
            pairs.append(list(range(len(specs), len(specs) + len(members))))
        specs += members
    plain = {"specs": [spec.to_json() for spec in specs], "pairs": pairs}
    write_atomically(results / "plan.json", json.dumps(plain, indent=1) + "\n")
    print(f"{len(specs)} missing runs: {results / 'plan.json'}")


def _folder(spec: RunSpec) -> str:
    return spec.path().rpartition("/")[0]


def sources(matrix: Matrix, found: Found, results: Path) -> str:
    """Digest of what a report is made from: study, platforms, and size and time of every record and frontier."""
    records = {run: list(recorded.items()) for run, (_, recorded) in found.items()}
    frontiers = {str(path): path.stat().st_mtime_ns for path in sorted(results.glob("frontier/*/*/*/*/frontier.json"))}
    return digest([matrix.digest, records, frontiers])


def is_current(results: Path, made_from: str) -> bool:
    """Whether the report was made from these `sources` and all its files are there."""
    try:
        index = json.loads((results / INDEX).read_bytes())
        files = [f"{results}/{name}" for name in index["files"]] if index["sources"] == made_from else []
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return False
    return bool(files) and all(os.path.isfile(file) for file in files)  # noqa: PTH113
