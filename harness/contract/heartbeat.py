"""What one rank leaves beside its log: how its process ended, and its last sign of life. Standard library only.

A heartbeat costs one `pwrite` of 256 bytes, so it may be sent inside the timed window. Readers see the old line or the
new one, never half of one.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

PHASES = ("load", "init", "forward", "backward", "step", "profile", "collect", "done")
LINE_BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How one rank's process ended."""

    rank: int
    exit_code: int | None
    """null when it was ended by a signal or never reported."""
    signal: str | None = None
    """For example SIGKILL."""
    at_s: float | None = None
    """Unix time of the end, as the rank's wrapper saw it; null when it never reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """Where a rank was, and when."""

    rank: int
    pid: int
    step: int
    """Optimizer step, 0-based, warm-up counted; -1 before the first."""
    phase: str
    at_s: float
    """Unix time."""
    allocated_bytes: int = 0
    free_bytes: int = -1
    """Free device memory as the driver (or the cap) sees it; -1: not known."""


class HeartbeatWriter:
    """Writes one rank's heartbeat; memory figures are the last ones given."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._fd = os.open(folder / f"heartbeat-{rank}.json", os.O_WRONLY | os.O_CREAT, 0o644)
        self._rank, self._pid = rank, os.getpid()
        self._allocated_bytes, self._free_bytes = 0, -1

    def beat(self, step: int, phase: str, allocated_bytes: int | None = None, free_bytes: int | None = None) -> None:
        """Overwrite the line. `phase` is one of PHASES."""
        if allocated_bytes is not None:
            self._allocated_bytes = allocated_bytes
        if free_bytes is not None:
            self._free_bytes = free_bytes
        line = (
            f'{{"rank": {self._rank}, "pid": {self._pid}, "step": {step}, "phase": "{phase}", '
            f'"at_s": {time.time():.6f}, "allocated_bytes": {self._allocated_bytes}, "free_bytes": {self._free_bytes}}}'
        )
        os.pwrite(self._fd, line.ljust(LINE_BYTES - 1).encode() + b"\n", 0)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The last heartbeat in a file; None when there is none yet or it cannot be read."""
    try:
        found = Heartbeat(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    numbers = (found.rank, found.pid, found.step, found.at_s, found.allocated_bytes, found.free_bytes)
    return found if all(isinstance(number, int | float) for number in numbers) else None
