"""Child processes that never outlive a test, free ports, and waiting for a condition."""

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(argv: Sequence[str | Path], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None):
    """Start a program that ends when this one does, in its own session, its output appended to `log`."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            [str(a) for a in argv], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=os.environ | (env or {}), cwd=cwd, start_new_session=True,
            preexec_fn=_die_with_parent,
        )  # fmt: skip


def stop(process: subprocess.Popen[bytes] | None, grace_s: float = 3.0, first: int = signal.SIGTERM) -> None:
    """End a program: ask, wait a little, kill."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(first)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(condition: Callable[[], T], timeout_s: float, what: str, every_s: float = 0.1) -> T:
    """Wait until `condition` returns something true and return it; AssertionError says what did not come."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {timeout_s:.0f} s for {what}; last value: {value!r}"
        time.sleep(every_s)
