"""Diagnose old attempts by the rules of today: their files are read again, nothing is run again."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.contract.files import write_atomically
from dtbench.study.matrix import Matrix
from dtbench.results.runs import (
    DIAGNOSES,
    Ended,
    Loaded,
    Reread,
    load_runs,
    read_diagnoses,
    readable,
    record_digest,
    with_diagnoses,
)
from harness.contract.codec import encode, read_json
from harness.contract.diagnosis import Diagnosis
from harness.contract.errors import SpecError
from harness.contract.record import Record
from harness.diagnosis import diagnose_folder

SUPERVISORS_OWN = frozenset({"preemption", "user_cancelled", "deadline", "parity_mismatch", "upload_failed"})
"""Outcomes the supervisor knows first-hand: no log can know better."""


def write_diagnoses(matrix: Matrix, results: Path) -> None:
    """Write diagnoses.json: attempt folder -> diagnosis, for every failed attempt whose logs are there."""
    found = {
        path: encode(Reread(record=record_digest(results / path / "record.json"), diagnosis=diagnosis))
        for path, diagnosis in rediagnosed(readable(load_runs(matrix, results)), results)
    }
    write_atomically(results / DIAGNOSES, json.dumps(found, indent=1, sort_keys=True) + "\n")


def mend_diagnoses(matrix: Matrix, results: Path) -> None:
    """Make a diagnoses.json again that cannot be read, and say so: everything in it can be found out again."""
    try:
        read_diagnoses(results / DIAGNOSES)
    except SpecError as error:
        print(f"{error}; made again from the logs")
        write_diagnoses(matrix, results)


def load_diagnosed(matrix: Matrix, results: Path) -> Loaded:
    """The study's runs by today's rules, also those that diagnoses.json does not know (yet)."""
    loaded = load_runs(matrix, results)
    unread = (ended for ended in readable(loaded) if not ended.reread)
    return with_diagnoses(loaded, dict(rediagnosed(unread, results)))


def ended_as(matrix: Matrix, results: Path, outcomes: frozenset[str]) -> frozenset[str]:
    """Folders of the runs whose outcome is one of these, judged as the report judges them."""
    loaded = load_diagnosed(matrix, results) if outcomes else []
    return frozenset(
        run.spec.path().rpartition("/")[0] for _, runs in loaded for run in runs if run.outcome in outcomes
    )


def rediagnosed(attempts: Iterable[Ended], results: Path) -> Iterator[tuple[str, Diagnosis]]:
    """Those of the attempts that failed and left logs, with their diagnosis by today's rules."""
    for ended in attempts:
        record = ended.record
        if record.outcome == "ok" or record.outcome in SUPERVISORS_OWN or not record.tries:
            continue
        folder = results / ended.path / f"try-{record.tries[-1].index}"
        if any(folder.glob("*.log*")):
            yield ended.path, _diagnose(folder, record)


def _diagnose(folder: Path, record: Record) -> Diagnosis:
    last = record.tries[-1]
    facts = _pod_facts(folder.parent / "k8s.json")
    diagnosis = diagnose_folder(
        folder,
        exits=last.exits,
        launcher_exit_code=last.launcher_exit_code,
        completed=False,
        pod=facts.get("pod"),
        events=facts.get("events"),
    )
    # What the supervisor saw live (a stall, a stack) is not in the files: what says nothing of it never replaces it.
    return record.diagnosis if diagnosis.outcome in ("unknown", "ok") else diagnosis


def _pod_facts(path: Path) -> dict[str, Any]:
    try:
        plain = read_json(path)
    except SpecError:
        return {}
    return plain if isinstance(plain, dict) else {}
