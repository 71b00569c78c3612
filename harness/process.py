"""Start processes that die with their parent, and end processes without a slow teardown.

Standard library only, so that a process which imports this starts in milliseconds.

    python -m harness.process PARENT_PID COMMAND...

runs COMMAND as a process that dies with its parent. The supervisor starts the launcher with it. A process must ask for
PR_SET_PDEATHSIG itself, and the supervisor has threads, so it is unsafe to do that between fork and exec.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; exit at once when it has already ended."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the parent ended before the call above, the kernel never sends the signal.
    if os.getppid() != parent_pid:
        sys.exit(f"the parent process {parent_pid} is gone; nothing is started without it")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that all can be found."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def leave(code: int) -> NoReturn:
    """End this process with this exit code, without the interpreter's teardown.

    After an import of PyTorch the teardown takes a second of CPU time and does nothing useful. Exit handlers run and
    output is flushed.
    """
    # The interpreter's own order: threads that must finish first, then the functions of `atexit`.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
