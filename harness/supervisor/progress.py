"""Which ranks make progress, by their heartbeats, and the progress lines on the terminal."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.contract.heartbeat import Heartbeat
from harness.contract.record import Record
from harness.contract.spec import Protocol, RunSpec

STEP_PHASES = ("forward", "backward", "step")
AFTER_LAST_STEP_S = 180.0
"""Bound for the profiled pass and the collection of results, for which no step time gives a bound."""

EVERY_S_TERMINAL = 3.0
EVERY_S_LOG = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A rank that made no progress for longer than its bound."""

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
    """Remembers when each rank last made progress, in seconds of the watcher's monotonic clock."""

    def __init__(self, world_size: int, protocol: Protocol, started_s: float, own_ranks: int | None = None) -> None:
        self._protocol = protocol
        self._own_ranks = world_size if own_ranks is None else own_ranks
        self._moved_s = dict.fromkeys(range(world_size), started_s)
        self._last: dict[int, Heartbeat] = {}
        self._step_times_s: list[float] = []
        self.window_s: tuple[float, float] | None = None
        """Unix times of the first and last sign of life inside the timed window, of this node's ranks: the clocks of
        other nodes may differ."""

    def see(self, beat: Heartbeat, now_s: float) -> None:
        """Take a rank's current heartbeat, new or seen before."""
        previous = self._last.get(beat.rank)
        if previous is not None and beat.at_s == previous.at_s:
            return
        if previous is not None and previous.step >= 0 and beat.step > previous.step:
            self._step_times_s.append((beat.at_s - previous.at_s) / (beat.step - previous.step))
        own = beat.rank < self._own_ranks
        if own and beat.step >= self._protocol.warmup_steps and beat.phase in STEP_PHASES:
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
        """How long the rank may be silent in its current phase."""
        protocol, beat = self._protocol, self._last.get(rank)
        if beat is None or beat.phase in ("load", "init") or beat.step < 1:
            return protocol.startup_stall_s
        steps = [max(t, 0.0) for t in self._step_times_s] or [0.0]
        bound = max(protocol.stall_floor_s, protocol.stall_factor * statistics.median(steps))
        if beat.phase in STEP_PHASES:
            return bound
        return max(bound, min(AFTER_LAST_STEP_S, protocol.startup_stall_s))

    def stalled(self, now_s: float) -> Stall | None:
        """The rank that exceeded its bound for longest; ranks that are done may wait for the others without limit."""
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


class Teller:
    """Prints progress lines: often to a terminal, seldom to a log, never the same line twice."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._every_s = EVERY_S_TERMINAL if sys.stdout.isatty() else EVERY_S_LOG
        self._due_s = time.monotonic() + self._every_s
        self._last = ""
        self._listeners: list[Callable[[Progress], None]] = []

    def listen(self, listener: Callable[[Progress], None]) -> None:
        """Show every progress to `listener` as well."""
        self._listeners.append(listener)

    def inner(self, spec: RunSpec) -> "Teller":
        """A printer for a run inside this one, with the same listeners."""
        teller = Teller(spec)
        teller._listeners = self._listeners
        return teller

    def progress(self, progress: Progress) -> None:
        """Print where the run is, when it is time to."""
        for listener in self._listeners:
            listener(progress)
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._every_s
        line = where(progress, self._spec)
        if line != self._last:
            say(f"  {line}")
            self._last = line


def say(line: str) -> None:
    """Print one line to stdout, unbuffered, and without terminal codes that a log may have brought in."""
    print("".join(c if c.isprintable() else " " for c in line), flush=True)


def where(progress: Progress, spec: RunSpec) -> str:
    """How far the slowest rank is."""
    if not progress.last:
        return "starting ranks"
    beat = min(progress.last.values(), key=lambda b: b.step)
    if beat.phase in ("profile", "collect", "done"):
        return beat.phase
    if beat.step < 0:
        return f"phase {beat.phase}"
    kind = " (warm-up)" if beat.step < spec.protocol.warmup_steps else ""
    return f"step {beat.step + 1}/{spec.total_steps}{kind}, {beat.phase}"


def title(spec: RunSpec) -> str:
    """The run in one line."""
    i, e = spec.identity, spec.engine
    text = f"{i.study} {spec.platform.name} {i.config} {i.arm} repeat {i.repeat} attempt {i.attempt}"
    return f"{text}: {e.name} through {e.launcher}, {spec.platform.world_size} ranks"


def summary(record: Record) -> str:
    """The outcome in one line, with the speed if there is one."""
    m = record.measured
    if m is not None and m.tokens_per_s is not None and m.step_time_s is not None:
        dagger = f", with remedy {record.tries[-1].remedy}" if record.dagger else ""
        doubts = f" [{', '.join(m.flags)}]" if m.flags else ""
        return f"{record.outcome}: {m.tokens_per_s:,.0f} tok/s, {1000 * m.step_time_s:,.1f} ms a step{dagger}{doubts}"
    return f"{record.outcome}: {record.diagnosis.sentence}"
