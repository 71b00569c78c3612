"""Which rank still moves, judged by its heartbeats: pure bookkeeping, no clock and no file of its own."""

import statistics
from dataclasses import dataclass

from harness.contract.heartbeat import Heartbeat
from harness.contract.spec import Protocol

STEP_PHASES = ("forward", "backward", "step")
AFTER_LAST_STEP_S = 180.0
"""Bound for the profiled pass and the collection of results, whose parts have no step time to go by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A rank without progress for longer than its bound."""

    rank: int
    silent_s: float
    bound_s: float
    step: int | None
    """null: it never sent a heartbeat."""
    phase: str

    def sentence(self) -> str:
        """One line for the log."""
        where = "before its first heartbeat" if self.step is None else f"at step {self.step}, phase {self.phase}"
        return f"rank {self.rank} made no progress for {self.silent_s:.0f} s (bound {self.bound_s:.0f} s) {where}"


class Progress:
    """Remembers when each rank last moved on, in seconds of the watcher's monotonic clock."""

    def __init__(self, world_size: int, protocol: Protocol, started_s: float) -> None:
        self._protocol = protocol
        self._moved_s = dict.fromkeys(range(world_size), started_s)
        self._last: dict[int, Heartbeat] = {}
        self._step_times_s: list[float] = []
        self.window_s: tuple[float, float] | None = None
        """Unix times of the first and last sign of life inside the timed window."""

    def see(self, beat: Heartbeat, now_s: float) -> None:
        """Take a rank's current heartbeat, new or seen before."""
        previous = self._last.get(beat.rank)
        if previous is not None and beat.at_s == previous.at_s:
            return
        if previous is not None and previous.step >= 0 and beat.step > previous.step:
            self._step_times_s.append((beat.at_s - previous.at_s) / (beat.step - previous.step))
        if beat.step >= self._protocol.warmup_steps and beat.phase in STEP_PHASES:
            start_s = self.window_s[0] if self.window_s else beat.at_s
            self.window_s = (start_s, beat.at_s)
        self._last[beat.rank] = beat
        self._moved_s[beat.rank] = now_s

    @property
    def last(self) -> dict[int, Heartbeat]:
        """The newest heartbeat of every rank that sent one."""
        return self._last

    @property
    def step(self) -> int | None:
        """Furthest step any rank reported; None before the first."""
        steps = [b.step for b in self._last.values() if b.step >= 0]
        return max(steps, default=None)

    @property
    def peak_allocated_bytes(self) -> int | None:
        """Largest allocation that the newest heartbeats report; None when none does."""
        return max((b.allocated_bytes for b in self._last.values()), default=0) or None

    def bound_s(self, rank: int) -> float:
        """How long the rank may be silent where it is now."""
        protocol, beat = self._protocol, self._last.get(rank)
        if beat is None or beat.phase in ("load", "init") or beat.step < 1:
            return protocol.startup_stall_s
        steps = [max(t, 0.0) for t in self._step_times_s] or [0.0]
        bound = max(protocol.stall_floor_s, protocol.stall_factor * statistics.median(steps))
        if beat.phase in STEP_PHASES:
            return bound
        return max(bound, min(AFTER_LAST_STEP_S, protocol.startup_stall_s))

    def stalled(self, now_s: float) -> Stall | None:
        """The rank that has been over its bound for longest; ranks that are done wait for the others without limit."""
        done = {r for r, b in self._last.items() if b.phase == "done"}
        waiting = [r for r in self._moved_s if r not in done] or list(self._moved_s)
        over = [(now_s - self._moved_s[r] - self.bound_s(r), r) for r in waiting]
        excess_s, rank = max(over)
        if excess_s <= 0:
            return None
        beat = self._last.get(rank)
        return Stall(
            rank=rank,
            silent_s=now_s - self._moved_s[rank],
            bound_s=self.bound_s(rank),
            step=beat.step if beat else None,
            phase=beat.phase if beat else "",
        )
