"""The folder of DeepSpeed's compiled operators, and the locks that killed processes leave in it.

PyTorch's loader creates `<operator>/lock` while it builds or loads an operator, keeps it open and removes it at the
end. Whoever comes meanwhile waits until it is gone: for ever, when the process that made it was killed.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from harness.supervisor.say import say

ABANDONED_S = 600
"""Age from which a lock that no process of this host holds is taken for left behind before we began.

A younger one may belong to another node that shares the folder: a build takes minutes, a load milliseconds."""
SETTLE_S = 0.5
"""Between closing a lock and removing it its owner does not hold it either."""


def extensions_folder() -> Path:
    """Where DeepSpeed's compiled operators are built: inside the environment unless the caller says otherwise."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")


def writable_extensions_folder() -> Path:
    """The same, copied to a temporary folder when an image's root is read-only: loading one writes a lock beside it."""
    built = extensions_folder()
    if not built.exists() or os.access(built, os.W_OK):
        return built
    copy = Path(tempfile.gettempdir()) / f"torch_extensions-{os.getuid()}"
    # Times are kept: ninja compares them to see that nothing needs to be built.
    shutil.copytree(built, copy, dirs_exist_ok=True)
    return copy


def drop_abandoned_locks(since_s: float | None = None) -> None:
    """Remove locks that nobody holds: those of our own ranks, made after `since_s` (Unix time), or else old ones."""
    border_s = time.time() - ABANDONED_S
    for lock in writable_extensions_folder().glob("*/lock"):
        with contextlib.suppress(FileNotFoundError):
            made = lock.stat()
            ours = since_s is not None and made.st_mtime >= since_s
            if not (ours or made.st_mtime < border_s) or _is_held(made):
                continue
            time.sleep(SETTLE_S)
            if lock.stat().st_ino == made.st_ino and not _is_held(made):
                lock.unlink()
                say(f"removed {lock}: a process that was killed left it, and loading the operator would wait for ever")


def _is_held(made: os.stat_result) -> bool:
    """Whether a process of this host has the file open; processes of others cannot be looked into and do not count."""
    wanted = (made.st_dev, made.st_ino)
    for process in Path("/proc").iterdir():
        # Processes end while we look, and those of others refuse.
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir() if process.name.isdigit() else ():
                with contextlib.suppress(OSError):
                    found = descriptor.stat()
                    if (found.st_dev, found.st_ino) == wanted:
                        return True
    return False
