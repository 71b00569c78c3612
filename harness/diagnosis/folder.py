"""Read one try's folder: logs, heartbeats and flight-recorder dumps, in the layout of `contract/record.py`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.contract.diagnosis import Diagnosis
from harness.contract.heartbeat import read_heartbeat
from harness.contract.record import RankExit
from harness.diagnosis.case import Case, Facts
from harness.diagnosis.findings import Findings
from harness.diagnosis.scan import Scanner, scan_path
from harness.diagnosis.verdict import decide

_RANK_FILE = re.compile(r"(?:^|[^a-z])(?:rank|heartbeat)[-_.]?(?P<rank>\d+)", re.I)


def diagnose(findings: Findings, facts: Facts | None = None) -> Diagnosis:
    """Judge what a scan found, together with what is known beside it."""
    return decide(Case(findings=findings, facts=facts or Facts()))


def diagnose_folder(
    folder: Path,
    *,
    exits: Sequence[RankExit] = (),
    launcher_exit_code: int | None = None,
    completed: bool = False,
    cancelled: str | None = None,
    pod: dict[str, Any] | None = None,
    events: list[Any] | None = None,
    started: bool = True,
) -> Diagnosis:
    """Diagnose one try folder.

    `completed`: every rank's result is there. `cancelled`: what the supervisor itself did, one of
    preemption, user_cancelled, deadline, stall. `pod`, `events`: as the Kubernetes API returns them.
    """
    scanner = Scanner()
    for path in log_files(folder):
        scan_path(scanner, path, path.relative_to(folder).as_posix(), rank_of(path))
    beats = [b for p in sorted(folder.glob("heartbeat-*.json")) if (b := read_heartbeat(p)) is not None]
    facts = Facts(
        exit_code=launcher_exit_code,
        exits=tuple(exits),
        completed=completed,
        cancelled=cancelled,
        heartbeats=tuple(beats),
        started=started,
    )
    return diagnose(scanner.findings, facts)


def log_files(folder: Path) -> list[Path]:
    """rank-*.log in the order of ranks, then launcher.log: what a rank says comes before what is said of it."""
    ranks = sorted((p for p in folder.glob("rank-*.log*") if p.is_file()), key=lambda p: (rank_of(p) or 0, p.name))
    return ranks + sorted(p for p in folder.glob("launcher.log*") if p.is_file())


def rank_of(path: Path) -> int | None:
    """The rank that a file's name gives: `rank-3.log`, `rank_3.txt`."""
    match = _RANK_FILE.search(path.name)
    return int(match["rank"]) if match else None
