"""Unfinished copies: how a file that is being written is called, and who may take one away that was left behind."""

import functools
import hashlib
import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path


def part_of(path: Path, pid: int | None = None) -> Path:
    """A name beside `path` for its unfinished copy: no other process has it, on this machine or another."""
    owner = f"{_machine()}.{os.getpid() if pid is None else pid}"
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{owner}.part")


def remove_leftovers(parts: Iterable[Path]) -> None:
    """Remove unfinished copies of processes of this machine that were killed while they wrote them."""
    for part in parts:
        machine, pid = ([""] * 2 + part.name.split("."))[-3:-1]
        if machine == _machine() and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            part.unlink(missing_ok=True)


@functools.cache
def _machine() -> str:
    """Which machine on a shared file system; a name alone would tell it to whoever reads the folder."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
