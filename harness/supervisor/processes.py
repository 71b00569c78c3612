"""Signals to this process, and the launcher's processes: they die with us, and none is left behind."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType

import psutil

from harness.contract.errors import HarnessError

ENDING = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
SCHEDULED = ("HARNESS_POD_NAME", "KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID")
"""Variables of a pod and of a Slurm job. There SIGTERM means preemption; elsewhere somebody killed the run."""
TERM_GRACE_S = 5.0
KILL_PATIENCE_S = 10.0


def meaning(number: int, variables: Mapping[str, str]) -> str:
    """The outcome of a run that a signal in ENDING ended, by where it ran."""
    taken = number == signal.SIGTERM and any(name in variables for name in SCHEDULED)
    return "preemption" if taken else "user_cancelled"


class Cancelled(HarnessError):
    """Stopped before there was anything to record, or on behalf of a caller that wants no record."""


class Signals:
    """While entered, a signal in ENDING is noted and does not end this process."""

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


def start(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, bound to this process's life, its output in `log`."""
    guard = [sys.executable, "-m", "harness.process", str(os.getpid()), *command]
    with open(log, "ab") as output:
        return subprocess.Popen(
            guard,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(launcher: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the launcher, which passes it on; after the grace SIGKILL to every descendant of ours."""
    if launcher.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            launcher.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(grace_s)
    sweep(launcher)


def sweep(launcher: subprocess.Popen[bytes]) -> None:
    """SIGKILL and reap every descendant until none is left; those whose parents have ended were adopted by us.

    Raises TimeoutError when one survives SIGKILL, which means that it hangs in the kernel (a dead disk or GPU).
    """
    end_at = time.monotonic() + KILL_PATIENCE_S
    while left := _descendants(launcher):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs([p for p in left if p.pid != launcher.pid], timeout=0.5)
        if time.monotonic() > end_at:
            pids = [p.pid for p in left]
            raise TimeoutError(f"processes {pids} survive SIGKILL: they hang in the kernel; the node needs a restart")
    launcher.wait(KILL_PATIENCE_S)


def _descendants(launcher: subprocess.Popen[bytes]) -> list[psutil.Process]:
    launcher.poll()
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
            elif process.pid != launcher.pid:
                # Only Popen may collect the launcher's status; adopted processes must be reaped here.
                os.waitpid(process.pid, os.WNOHANG)
    return found
