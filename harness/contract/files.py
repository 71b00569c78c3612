"""Atomic writes, and the removal of unfinished copies that killed writers left."""

import functools
import glob
import hashlib
import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write a file atomically: a reader finds the old content or the new one, also when this process is killed.

    `durable` content survives a power failure too, at the price of waiting for the disk. Makes the folder when there is
    none. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent.glob(f".{glob.escape(path.name)}.*.part"))
    part = part_of(path)
    try:
        with open(part, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def part_of(path: Path, pid: int | None = None) -> Path:
    """A name beside `path` for its unfinished copy that no other process on any machine uses."""
    owner = f"{_machine()}.{os.getpid() if pid is None else pid}"
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{owner}.part")


def remove_leftovers(parts: Iterable[Path]) -> None:
    """Remove unfinished copies whose writers, processes of this machine, were killed."""
    for part in parts:
        machine, pid = ([""] * 2 + part.name.split("."))[-3:-1]
        if machine == _machine() and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            part.unlink(missing_ok=True)


@functools.cache
def _machine() -> str:
    """Hash of this machine's name, to tell machines that share a file system apart. The name itself stays private."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
