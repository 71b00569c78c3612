"""Diagnose old attempts by the rules of today: their files are read again, nothing is run again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.files import write_text
from bench.matrix import Matrix
from bench.runs import DIAGNOSES, Loaded, load_runs, readable, with_diagnoses
from harness.contract.codec import encode
from harness.contract.diagnosis import Diagnosis
from harness.contract.record import Record
from harness.diagnosis import diagnose_folder

SUPERVISORS_OWN = frozenset({"preemption", "user_cancelled", "deadline", "parity_mismatch", "upload_failed"})
"""Outcomes the supervisor knows first-hand: no log can know better."""


def write_diagnoses(matrix: Matrix, results: Path) -> None:
    """Write diagnoses.json: attempt folder -> diagnosis, for every failed attempt whose logs are there."""
    found = {path: encode(diagnosis) for path, diagnosis in rediagnosed(load_runs(matrix, results), results)}
    write_text(results / DIAGNOSES, json.dumps(found, indent=1, sort_keys=True) + "\n")


def load_diagnosed(matrix: Matrix, results: Path) -> Loaded:
    """The study's runs by today's rules also before all are there, which is when diagnoses.json is written."""
    loaded = load_runs(matrix, results)
    return loaded if (results / DIAGNOSES).is_file() else with_diagnoses(loaded, dict(rediagnosed(loaded, results)))


def rediagnosed(loaded: Loaded, results: Path) -> Iterator[tuple[str, Diagnosis]]:
    """Every failed attempt that left logs, with its diagnosis by today's rules."""
    for ended in readable(loaded):
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
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}
