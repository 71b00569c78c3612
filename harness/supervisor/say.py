"""What a person who runs it by hand sees: a start line, progress now and then, the outcome."""

import sys
import time
from collections.abc import Callable

from harness.contract.record import Record
from harness.contract.spec import RunSpec
from harness.supervisor.progress import Progress

EVERY_S_TERMINAL = 3.0
EVERY_S_LOG = 30.0


class Teller:
    """Prints progress lines, often to a terminal and seldom to a log, never the same one twice."""

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
        """A teller for a run inside this one, which the same listeners follow."""
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
    """One line to stdout, at once; text that came from a log cannot steer the terminal."""
    print("".join(c if c.isprintable() else " " for c in line), flush=True)


def where(progress: Progress, spec: RunSpec) -> str:
    """The slowest rank's place in the run."""
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
    """The outcome in one line, with the number when there is one."""
    m = record.measured
    if m is not None and m.tokens_per_s is not None and m.step_time_s is not None:
        dagger = f", with remedy {record.tries[-1].remedy}" if record.dagger else ""
        doubts = f" [{', '.join(m.flags)}]" if m.flags else ""
        return f"{record.outcome}: {m.tokens_per_s:,.0f} tok/s, {1000 * m.step_time_s:,.1f} ms a step{dagger}{doubts}"
    return f"{record.outcome}: {record.diagnosis.sentence}"
