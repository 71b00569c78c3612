"""Diagnose one log, one try's folder, an attempt's folder, or any folder of logs."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from harness.contract.errors import SpecError
from harness.contract.heartbeat import Heartbeat, RankExit, read_heartbeat
from harness.contract.outcome import Diagnosis, Evidence
from harness.diagnosis.judging.case import Case, Facts
from harness.diagnosis.judging.flight_recorder import analyse, find_dumps, is_dump
from harness.diagnosis.judging.pod import events_text, read_pods
from harness.diagnosis.judging.verdict import decide
from harness.diagnosis.reading.findings import Findings
from harness.diagnosis.reading.scan import Scanner, scan_path
from harness.diagnosis.signatures.signature import STOPS

if TYPE_CHECKING:
    from harness.contract.record import Record

_RANK_FILE = re.compile(r"(?:^|[^a-z])(?:rank|heartbeat|local_rank)[-_.]?(?P<rank>\d+)", re.I)
_OTHER_RANK = re.compile(r"lora|low[-_]?rank", re.I)
"""Names such as `lora-rank16`: the rank of a matrix or an adapter, not of a process."""
_TORCHRUN_FILE = re.compile(r"^(?P<rank>\d+)[/\\](?:stdout|stderr|error)\.(?:log|json)$")
LARGEST_DOCUMENT_BYTES = 16 << 20
_NOT_LOGS = frozenset(
    {".pkl", ".pickle", ".pt", ".bin", ".safetensors", ".png", ".so", ".pyc", ".tar", ".zip", ".arrow", ".parquet"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The input: a path or an open log, and the facts given with it."""

    path: Path | None = None
    stdin: IO[bytes] | None = None
    exit_code: int | None = None
    pod: Any = None
    events: Any = None
    flight_recorder: Path | None = None


def diagnose(findings: Findings, facts: Facts | None = None) -> Diagnosis:
    """Judge a scan's findings together with the facts beside the logs."""
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
    """Diagnose one try folder (layout: `contract/record.py`).

    `completed`: every rank's result is there. `cancelled`: what the supervisor itself did, one of
    preemption, user_cancelled, deadline, stall. `pod`, `events`: as the Kubernetes API returns them.
    `started`: whether the ranks' processes ran at all.
    """
    scanner = Scanner()
    for path in try_logs(folder):
        scan_path(scanner, path, path.relative_to(folder).as_posix(), rank_of(path))
    return _judge(
        scanner,
        folder=folder,
        source=Source(exit_code=launcher_exit_code, pod=pod, events=events),
        exits=tuple(exits) or read_exits(folder),
        completed=completed,
        cancelled=cancelled,
        started=started,
    )


def diagnose_source(source: Source) -> Diagnosis:
    """Diagnose the input of the command line. Raises OSError when it cannot be read."""
    scanner = Scanner()
    if source.path is None:
        if source.stdin is not None:
            scanner.scan(source.stdin, "-")
        return _judge(scanner, source=source)
    if not source.path.is_dir():
        with source.path.open("rb") as handle:
            if (known := _kubernetes(handle)) is not None:
                events = (known.get("items") or [known])[0].get("kind") == "Event"
                return _judge(scanner, source=replace(source, events=known) if events else replace(source, pod=known))
            siblings = [p for p in source.path.parent.iterdir() if p.is_file()]
            scanner.scan(handle, source.path.name, ranks_by_name(siblings).get(source.path))
        return _judge(scanner, source=source)
    if (source.path / "record.json").is_file() and (record := _record(source.path)) is not None:
        return _again(source, record)
    logs = any_logs(source.path)
    ranks = ranks_by_name(logs, source.path)
    for path in logs:
        scan_path(scanner, path, path.relative_to(source.path).as_posix(), ranks.get(path))
    return _judge(scanner, source=source, folder=source.path, exits=read_exits(source.path))


def _kubernetes(handle: IO[bytes]) -> dict[str, Any] | None:
    """The document when a file is what `kubectl get -o json` prints; else None, with the file rewound."""
    head = handle.read(1)
    handle.seek(0)
    if head != b"{":
        return None
    data = handle.read(LARGEST_DOCUMENT_BYTES)
    handle.seek(0)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and {"apiVersion", "kind"} <= found.keys() else None


def _again(source: Source, record: "Record") -> Diagnosis:
    """Diagnose a finished attempt again: its last try, with the exit codes in its record."""
    assert source.path is not None
    if not record.tries:
        return record.diagnosis
    last = record.tries[-1]
    folder = source.path / f"try-{last.index}"
    if not folder.is_dir():
        return record.diagnosis
    told = last.diagnosis.outcome
    stopped = told if told in STOPS and last.diagnosis.confidence == "high" else None
    stalled = "stall" if any("no progress" in note for note in record.notes) else None
    return diagnose_folder(
        folder,
        exits=last.exits,
        launcher_exit_code=last.launcher_exit_code if source.exit_code is None else source.exit_code,
        completed=told in ("ok", "parity_mismatch"),
        cancelled=stopped or stalled,
        pod=source.pod,
        events=source.events,
    )


def _judge(
    scanner: Scanner,
    *,
    source: Source,
    folder: Path | None = None,
    exits: tuple[RankExit, ...] = (),
    completed: bool = False,
    cancelled: str | None = None,
    started: bool = True,
) -> Diagnosis:
    pods = read_pods(source.pod)
    if source.events is not None:
        scanner.scan(events_text(source.events), "events")
    scanner.findings.started_pod |= pods.started
    dumps = find_dumps(source.flight_recorder) if source.flight_recorder else []
    if folder is not None:
        dumps += [p for place in (folder, folder / "flight-recorder") for p in find_dumps(place)]
    facts = Facts(
        exit_code=source.exit_code if source.exit_code is not None else pods.exit_code,
        exits=exits,
        completed=completed,
        cancelled=cancelled,
        verdicts=tuple(pods.verdicts),
        stuck=analyse(dumps) if dumps else None,
        heartbeats=read_heartbeats(folder) if folder is not None else (),
        stacks=read_stacks(folder) if folder is not None else (),
        started=started,
    )
    return diagnose(scanner.findings, facts)


def try_logs(folder: Path) -> list[Path]:
    """rank-*.log in the order of ranks, then launcher.log, so that a rank speaks before the launcher does."""
    ranks = sorted((p for p in folder.glob("rank-*.log*") if p.is_file()), key=lambda p: (rank_of(p) or 0, p.name))
    return ranks + sorted(p for p in folder.glob("launcher*.log*") if p.is_file())


def any_logs(folder: Path) -> list[Path]:
    """Every file below a folder that may be a log; logs of single ranks first."""
    if (folder / "launcher.log").is_file():
        return try_logs(folder)
    files = [p for p in folder.rglob("*") if p.suffix.lower() not in _NOT_LOGS and p.is_file()]
    files = [p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    files = [p for p in files if not is_dump(p) and not p.name.startswith(("heartbeat-", "exit-"))]
    return sorted(files, key=lambda p: ((r := rank_of(p, folder)) is None, r or 0, p.as_posix()))


def rank_of(path: Path, top: Path | None = None) -> int | None:
    """The rank that a file's name gives: `rank-3.log`, `rank_3.txt`, torchrun's `3/stderr.log`."""
    match = _RANK_FILE.search(path.name)
    if match is None and top is not None:
        match = _TORCHRUN_FILE.match("/".join(path.parts[-2:]))
    return int(match["rank"]) if match else None


def ranks_by_name(files: Sequence[Path], top: Path | None = None) -> dict[Path, int]:
    """Ranks from file names, for files whose names differ in one number only, counted from 0 or without a gap.

    A name alone proves nothing: `lora-rank16.log` is the log of a whole run.
    """
    groups: dict[str, dict[Path, int]] = {}
    for path in files:
        if (rank := rank_of(path, top)) is not None and not _OTHER_RANK.search(path.name):
            groups.setdefault(re.sub(r"\d+", "0", path.as_posix()), {})[path] = rank
    found: dict[Path, int] = {}
    for group in groups.values():
        ranks = set(group.values())
        if len(ranks) > 1 and (0 in ranks or max(ranks) - min(ranks) < len(ranks)):
            found |= group
    return found


def read_heartbeats(folder: Path) -> tuple[Heartbeat, ...]:
    """The last heartbeat of every rank, in the order of ranks."""
    found = [read_heartbeat(path) for path in folder.glob("heartbeat-*.json")]
    return tuple(sorted((b for b in found if b is not None), key=lambda b: b.rank))


def _exit(plain: dict[str, Any]) -> RankExit:
    at_s = plain.get("at_s")
    return RankExit(
        rank=plain["rank"],
        exit_code=plain["exit_code"],
        signal=plain.get("signal"),
        at_s=float(at_s) if at_s is not None else None,
    )


def read_stacks(folder: Path) -> tuple[Evidence, ...]:
    """The innermost frame of the main thread in every faulthandler dump."""
    found = []
    for path in sorted(folder.glob("stacks-*.txt")):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        # The signal is handled in the main thread, which faulthandler calls the current one.
        start = next((i for i, line in enumerate(lines) if line.startswith("Current thread")), len(lines))
        frame = next((i for i in range(start, len(lines)) if lines[i].lstrip().startswith("File ")), None)
        if frame is not None:
            found.append(Evidence(file=path.name, line=frame + 1, text=lines[frame].strip()))
    return tuple(found)


def read_exits(folder: Path) -> tuple[RankExit, ...]:
    """exit-<rank>.json of every rank that left one, in the order of ranks."""
    exits = []
    for path in folder.glob("exit-*.json"):
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            exits.append(_exit(plain))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return tuple(sorted(exits, key=lambda e: e.rank))


def _record(folder: Path) -> "Record | None":
    try:
        from harness.contract.record import read_record

        return read_record(folder / "record.json")
    except (ImportError, SpecError):  # a bare Python has no msgspec: there the logs alone are read
        return None
