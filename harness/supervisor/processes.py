"""Start a launcher so that nothing of it can outlive us, and end all of it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

TERM_GRACE_S = 5.0
KILL_PATIENCE_S = 10.0


def start(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, bound to this process's life, its output in `log`."""
    guard = [sys.executable, "-m", "harness.supervisor.guard", str(os.getpid()), *command]
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
    """SIGKILL and reap every descendant until none is left; ours too are those whose parents have ended.

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
                # Popen alone may collect the launcher's status; the adopted ones are nobody else's.
                os.waitpid(process.pid, os.WNOHANG)
    return found
