"""Signals as events: handlers only take note and wake the watcher, which decides."""

import os
import select
import signal
import time
from collections.abc import Mapping
from types import FrameType, TracebackType

from harness.contract.errors import HarnessError

ENDING = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
SCHEDULED = ("HARNESS_POD_NAME", "KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID")
"""Variables of a pod and of a Slurm job: there SIGTERM is how a node is taken back, elsewhere it is somebody's kill."""


def meaning(number: int, variables: Mapping[str, str]) -> str:
    """The outcome of a run that a signal in ENDING ended, by where it ran."""
    taken = number == signal.SIGTERM and any(name in variables for name in SCHEDULED)
    return "preemption" if taken else "user_cancelled"


class Cancelled(HarnessError):
    """Given up before there was anything to record, or by a caller who wants no record of that."""


class Signals:
    """While entered, the signals in ENDING are noted in place of ending this process."""

    def __init__(self) -> None:
        self.cancelled: str | None = None
        self.received_s: float | None = None
        """Monotonic time of the first signal: a Spot node leaves about 25 s from here."""
        self._read, self._write = -1, -1

    def __enter__(self) -> "Signals":
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, self._note) for number in ENDING}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.cancelled is None:
            self.cancelled, self.received_s = meaning(number, os.environ), time.monotonic()

    def wait(self, descriptor: int | None, timeout_s: float) -> bool:
        """Wait until `descriptor` is readable (True), a signal comes or the time is up (False)."""
        awaited = [self._read] if descriptor is None else [descriptor, self._read]
        ready, _, _ = select.select(awaited, [], [], max(0.0, timeout_s))
        if self._read in ready:
            os.read(self._read, 4096)
        return descriptor in ready
