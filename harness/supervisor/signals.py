"""Signals as events: handlers only take note and wake the watcher, which decides."""

import os
import select
import signal
import time
from types import FrameType, TracebackType

from harness.contract.errors import HarnessError

CANCELS = {signal.SIGINT: "user_cancelled", signal.SIGHUP: "user_cancelled", signal.SIGTERM: "preemption"}
"""What each signal means to a run: a terminal's ends are somebody's will, SIGTERM is how a node is taken back."""


class Cancelled(HarnessError):
    """Given up before there was anything to record, or by a caller who wants no record of that."""


class Signals:
    """While entered, the signals in CANCELS are noted in place of ending this process."""

    def __init__(self) -> None:
        self.cancelled: str | None = None
        self.received_s: float | None = None
        """Monotonic time of the first signal: a Spot node leaves about 25 s from here."""
        self._read, self._write = -1, -1

    def __enter__(self) -> "Signals":
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, self._note) for number in CANCELS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.cancelled is None:
            self.cancelled, self.received_s = CANCELS[signal.Signals(number)], time.monotonic()

    def wait(self, descriptor: int | None, timeout_s: float) -> bool:
        """Wait until `descriptor` is readable (True), a signal comes or the time is up (False)."""
        awaited = [self._read] if descriptor is None else [descriptor, self._read]
        ready, _, _ = select.select(awaited, [], [], max(0.0, timeout_s))
        if self._read in ready:
            os.read(self._read, 4096)
        return descriptor in ready
