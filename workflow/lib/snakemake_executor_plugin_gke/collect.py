"""Bring a finished attempt from the bucket into results/: every file checked, none ever half there."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Protocol

from harness.contract.errors import SpecError
from harness.contract.parts import part_of, remove_leftovers
from harness.contract.record import Record, parse_record
from harness.contract.spec import RunSpec

from .errors import RemoteError

CHUNK_BYTES = 1 << 20


class Damaged(RemoteError):
    """What the bucket holds does not match its record."""


class Source(Protocol):
    """The part of the bucket that collecting needs."""

    def read(self, name: str) -> bytes: ...

    def fetch(self, name: str, path: Path) -> None: ...


def collect(source: Source, remote: str, record_name: str, folder: Path, spec: RunSpec) -> Record:
    """Copy the attempt at `remote` into `folder`, record.json last and each file atomically.

    `record_name` is the object that holds the record, below `remote`. Files already there with the
    right checksum are not fetched again. Raises Unavailable, Refused, Damaged.
    """
    raw = source.read(f"{remote}/{record_name}")
    record = check_record(raw, spec, f"{remote}/{record_name}")
    base = str(Path(record_name).parent)
    remove_leftovers(list(folder.rglob(".*.part")))
    for file in record.files:
        target = _inside(folder, file.path)
        if target.exists() and _sha256(target) == file.sha256:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(target)
        try:
            source.fetch(f"{remote}/{file.path}" if base == "." else f"{remote}/{base}/{file.path}", part)
            if (found := _sha256(part)) != file.sha256:
                raise Damaged(
                    f"{remote}/{file.path}: found sha256 {found[:12]}..., record says {file.sha256[:12]}...: the "
                    f"bucket's copy is damaged or was overwritten; to run it anew delete {remote}/ there and its Job"
                )
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    write_atomically(folder / "record.json", raw)
    return record


def check_record(raw: bytes | str, spec: RunSpec, where: str) -> Record:
    """Decode a record and hold it against the spec it must belong to. Raises Damaged."""
    try:
        record = parse_record(json.loads(raw))
    except (ValueError, SpecError) as error:
        raise Damaged(f"{where}: not a record: {error}; to run it anew delete it and its Job") from None
    if record.spec_hash != spec.hash():
        raise Damaged(f"{where}: found a record of spec {record.spec_hash[:12]}, expected {spec.hash()[:12]}")
    return record


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a kill at any moment, finds the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, readable and with a final newline."""
    write_atomically(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def _inside(folder: Path, relative: str) -> Path:
    target = folder / relative
    if Path(relative).is_absolute() or ".." in Path(relative).parts:
        raise Damaged(f"record lists {relative!r}, which lies outside the attempt's folder")
    return target


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
