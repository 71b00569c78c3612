"""End a process without taking the interpreter down. Standard library only.

After an import of PyTorch that takes a second of CPU time in every process, in which nothing of use happens.
"""

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """Do what programs asked to be done at the end, flush what was said, and be gone with that exit code."""
    # The order of the interpreter itself: threads that must finish first, then the functions of `atexit`.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)
