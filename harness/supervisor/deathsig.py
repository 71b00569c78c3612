"""Linux process bonds: die with the parent, adopt orphaned descendants. Standard library only, quick to import."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; leave at once when it has already ended."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the call above: then nobody would ever tell.
    if os.getppid() != parent_pid:
        sys.exit(f"the parent process {parent_pid} is gone; nothing is started without it")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can slip away."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")
