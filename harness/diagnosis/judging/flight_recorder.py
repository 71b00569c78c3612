"""Read PyTorch's flight-recorder dumps and find who never joined which collective.

A dump is a pickle of plain containers; it is read with an unpickler that can build nothing else.
"""

import io
import json
import pickle
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.contract.outcome import Evidence
from harness.diagnosis.judging.case import Stuck

LARGEST_DUMP_BYTES = 256 << 20
_RANK = re.compile(r"(?:rank)?[-_.]?(\d+)(?:\.(?:pkl|pickle|json))?$", re.I)
_NAME = re.compile(r"flight[-_]?recorder|nccl_trace|(?:^|[-_])fr[-_]|trace_rank", re.I)


class DumpError(ValueError):
    """The file is not a flight-recorder dump, or it holds more than plain containers."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise DumpError(f"a flight-recorder dump holds plain containers only, found {module}.{name}")


@dataclass(slots=True)
class _Call:
    """One collective as one rank recorded it."""

    operation: str
    elements: int
    state: str
    created_ns: int


@dataclass(slots=True)
class _Tape:
    """One rank's part in one process group."""

    calls: dict[int, _Call] = field(default_factory=dict)
    enqueued: int = -1
    completed: int = -1


def find_dumps(folder: Path) -> list[Path]:
    """Files in a folder that look like dumps, by their names."""
    return sorted(p for p in folder.iterdir() if is_dump(p)) if folder.is_dir() else []


def is_dump(path: Path) -> bool:
    """Whether a file is a dump, by its name or its folder's."""
    named = path.parent.name in ("flight-recorder", "flight_recorder") or _NAME.search(path.name) is not None
    return named and path.is_file()


def load(path: Path) -> dict[str, Any]:
    """One dump, pickle or JSON. Raises DumpError."""
    try:
        if path.stat().st_size > LARGEST_DUMP_BYTES:
            raise DumpError(f"{path.name}: larger than {LARGEST_DUMP_BYTES >> 20} MiB")
        data = path.read_bytes()
        found = json.loads(data) if data[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except DumpError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DumpError(f"{path.name}: not a flight-recorder dump: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise DumpError(f"{path.name}: not a flight-recorder dump: no list of entries")
    return found


def analyse(paths: list[Path]) -> Stuck | None:
    """Compare the dumps of all ranks; None when nothing is stuck. Other files are skipped."""
    groups: dict[str, dict[int, _Tape]] = {}
    members: dict[str, set[int]] = {}
    names: dict[int, str] = {}
    for path in paths:
        match = _RANK.search(path.name)
        try:
            dump = load(path)
        except DumpError:
            continue
        rank = int(match[1]) if match else len(names)
        names[rank] = path.name
        _read(dump, rank, groups, members)
    found = [s for g, tapes in groups.items() if (s := _stuck(g, tapes, members.get(g, set()), names)) is not None]
    # A rank missing from one group may itself wait in another. The root is the group whose missing rank waits nowhere.
    waiting = {r for tapes in groups.values() for r, t in tapes.items() if _pending(t)}
    found.sort(key=lambda s: (s.culprit_rank is None, s.culprit_rank in waiting))
    return found[0] if found else None


def _read(dump: dict[str, Any], rank: int, groups: dict[str, dict[int, _Tape]], members: dict[str, set[int]]) -> None:
    for group, config in _mapping(dump.get("pg_config")).items():
        members.setdefault(str(group), set()).update(_ranks(_mapping(config).get("ranks")))
    for group, status in _mapping(dump.get("pg_status")).items():
        tape = groups.setdefault(str(group), {}).setdefault(rank, _Tape())
        tape.enqueued = _number(_mapping(status).get("last_enqueued_collective"))
        tape.completed = _number(_mapping(status).get("last_completed_collective"))
    for entry in dump["entries"]:
        if not isinstance(entry, dict) or entry.get("is_p2p"):
            continue
        process_group = entry.get("process_group")
        group = str(process_group[0]) if isinstance(process_group, list | tuple) and process_group else "0"
        tape = groups.setdefault(group, {}).setdefault(rank, _Tape())
        sequence = _number(entry.get("collective_seq_id", entry.get("seq_id")))
        call = _Call(
            operation=str(entry.get("profiling_name", "?")).split(":", 1)[-1],
            elements=_elements(entry.get("input_sizes")),
            state=str(entry.get("state", "?")),
            created_ns=_number(entry.get("time_created_ns")),
        )
        tape.calls[sequence] = call
        tape.enqueued = max(tape.enqueued, sequence)
        if call.state == "completed":
            tape.completed = max(tape.completed, sequence)


def _stuck(group: str, tapes: dict[int, _Tape], members: set[int], names: dict[int, str]) -> Stuck | None:
    pending = {rank: s for rank, tape in tapes.items() if (s := _pending(tape)) is not None}
    if not pending:
        return None
    sequence = min(pending.values())
    present = {rank: tape.calls[sequence] for rank, tape in tapes.items() if sequence in tape.calls}
    behind = sorted(rank for rank, tape in tapes.items() if tape.enqueued < sequence)
    silent = sorted(members - tapes.keys())
    absent = behind or silent
    kinds = Counter((c.operation, c.elements) for c in present.values())
    odd = ""
    culprit = absent[0] if len(absent) == 1 else None
    if not absent and len(kinds) > 1:
        odd = ", ".join(f"rank {r} in {c.operation} of {c.elements} elements" for r, c in sorted(present.items())[:4])
        rarest = [r for r, c in present.items() if kinds[c.operation, c.elements] == min(kinds.values())]
        culprit = rarest[0] if len(rarest) == 1 and len(present) > 2 else None
    first = present[min(present)]
    texts = {r: f"group {group}: last enqueued {t.enqueued}, last completed {t.completed}" for r, t in tapes.items()}
    shown = [r for r in (culprit, min(pending)) if r in texts]
    return Stuck(
        culprit_rank=culprit,
        operation=first.operation,
        sequence=sequence,
        elements=first.elements,
        last_completed={r: t.completed for r, t in tapes.items()},
        evidence=tuple(Evidence(file=names[r], line=0, text=f"rank {r}: {texts[r]}") for r in shown),
        mismatch=odd,
    )


def _pending(tape: _Tape) -> int | None:
    """The first collective that a rank enqueued and that did not complete."""
    waiting = [s for s, c in tape.calls.items() if c.state != "completed" and s > tape.completed]
    return min(waiting, default=None)


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _ranks(text: Any) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", str(text or ""))]


def _elements(sizes: Any) -> int:
    if not isinstance(sizes, list | tuple) or not sizes or not isinstance(sizes[0], list | tuple):
        return 0
    product = 1
    for size in sizes[0]:
        product *= _number(size)
    return product
