"""The folder of one attempt: locked while in use, cleared of unfinished work, finished by its record."""

import contextlib
import errno
import fcntl
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import structs

from harness.contract.errors import DeliveryError, HarnessError, SpecError
from harness.contract.files import write_atomically
from harness.contract.parity import REFERENCE
from harness.contract.record import File, Record, read_record
from harness.contract.spec import RunSpec
from harness.supervisor.processes import Cancelled, Signals

RECORD = "record.json"
SPEC = "spec.json"
CHOSEN = "chosen.json"
"""The spec that the tuned arm's trials chose; the ranks then read it in place of SPEC."""
TORN = "record.json.torn"
"""An unreadable record gets this name when its attempt runs again, so that nothing is lost."""
RECORD_LINE = "HARNESS-RECORD "
"""Prefix of the stdout line that holds the whole record, in case disk or bucket is lost."""
RESERVE = ".reserve"
RESERVE_BYTES = 2**20
"""Bytes reserved from the start, so that the record can be written when the run has filled the disk."""
LOCK_POLL_S = 0.5
COMPRESS_FROM_BYTES = 2**20


@contextlib.contextmanager
def locked(out: Path, signals: Signals) -> Iterator[None]:
    """Lock the folder for this process; the lock ends with the process, however that ends.

    Waits while another supervisor holds it; its record is then found. Raises Cancelled on a signal.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HarnessError(f"{out}: cannot be used as a folder: {error.strerror}; name another") from None
    try:
        if not _taken(descriptor):
            print(f"another supervisor is working in {out}; waiting for it", flush=True)
            while not _taken(descriptor):
                signals.wait(None, LOCK_POLL_S)
                if signals.cancelled:
                    raise Cancelled(f"a signal came while waiting for the supervisor that works in {out}")
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network file systems cannot lock folders; then the folder is used without a lock.
        return True
    return True


def finished(out: Path, spec: RunSpec) -> Record | None:
    """The record in `out`; None when there is none, or only an incomplete one without an outcome. A readable record
    finishes the attempt, for the workflow too. Its numbers count even when files of its list are gone; see `unsound`.
    Raises SpecError when the folder holds the finished record of another spec or of other code, or one that cannot be
    opened.
    """
    path = out / RECORD
    if not path.exists():
        return None
    try:
        record = read_record(path)
    except SpecError as error:
        if _is_torn(path):
            return None
        raise SpecError(f"{error}; move it away to run the attempt again") from None
    if record.spec_hash != spec.hash():
        found, expected = record.spec_hash[:12], spec.hash()[:12]
        raise SpecError(f"{out}: holds the finished record of spec {found}, not of {expected}; name another folder")
    return record


def _is_torn(path: Path) -> bool:
    """Whether an unreadable record has no outcome. One that cannot be opened, or is of newer code, may have one."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return False
    except (ValueError, RecursionError):
        return True
    return not isinstance(plain, dict) or not isinstance(plain.get("outcome"), str)


def unsound(out: Path, record: Record) -> list[str]:
    """Files of the record's list that are missing or differ from the list."""
    return [file.path for file in record.files if not _holds(out, file)]


def without(record: Record, paths: list[str]) -> Record:
    """The record with these files taken off its list, and a note that names them."""
    files = tuple(file for file in record.files if file.path not in paths)
    notes = (f"{path}: gone or changed after the record was written" for path in paths)
    return structs.replace(record, files=files, notes=(*record.notes, *notes))


def prepare(out: Path, spec: RunSpec) -> None:
    """Remove the files of an unfinished attempt and write the spec; other files are left alone.

    Raises HarnessError when the folder cannot be written.
    """
    try:
        _prepare(out, spec)
    except OSError as error:
        raise HarnessError(f"{error.filename or out}: {error.strerror}; free space or name another folder") from None


def _prepare(out: Path, spec: RunSpec) -> None:
    with contextlib.suppress(FileNotFoundError):
        (out / RECORD).replace(out / TORN)
    for name in (RECORD, SPEC, CHOSEN, REFERENCE, RESERVE, "telemetry.jsonl"):
        for path in (out / name, *out.glob(f".{name}.*.part")):
            path.unlink(missing_ok=True)
    for folder in (*out.glob("try-*"), *out.glob("trial-*")):
        shutil.rmtree(folder)
    write_spec(out / SPEC, spec)
    descriptor = os.open(out / RESERVE, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
    finally:
        os.close(descriptor)


def write_spec(path: Path, spec: RunSpec) -> None:
    """Write a spec as the ranks read it."""
    write_atomically(path, json.dumps(spec.to_json(), indent=1) + "\n", durable=True)


def empty(place: Path) -> None:
    """A fresh folder for one launch of a try."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "flight-recorder").mkdir(parents=True)


def one_line(record: Record) -> str:
    """The record as one line of ASCII JSON."""
    return json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False)


def text_of(record: Record) -> str:
    """The text of a record's file."""
    return json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n"


def write_record(out: Path, record: Record) -> None:
    """Write the record, last. Raises DeliveryError when the disk refuses it; the record is then on stdout."""
    text = text_of(record)
    (out / RESERVE).unlink(missing_ok=True)
    try:
        write_atomically(out / RECORD, text, durable=True)
    except OSError as error:
        print(RECORD_LINE + one_line(record), flush=True)
        raise DeliveryError(
            f"{out / RECORD}: not written: {error.strerror}; the record is on the line above, free space to run again"
        ) from None


def list_files(out: Path) -> tuple[File, ...]:
    """Every file of the attempt, with size and checksum, in order of path."""
    paths = [
        out / SPEC,
        out / CHOSEN,
        out / REFERENCE,
        out / "telemetry.jsonl",
        *out.glob("try-*/**/*"),
        *out.glob("trial-*/**/*"),
    ]
    return tuple(_describe(out, path) for path in sorted(paths) if path.is_file() and not path.is_symlink())


def tidy(out: Path) -> None:
    """Compress logs over 1 MiB, remove empty files; without room for the compressed copy a log stays as it is."""
    for place in out.glob("try-*"):
        tidy_try(place)


def tidy_try(place: Path) -> None:
    """The same in the folder of one try."""
    for dump in place.glob("stacks-*.txt"):
        if dump.stat().st_size == 0:
            dump.unlink()
    for pipe in place.glob("flight-recorder/*.pipe"):
        # NCCL's named pipes: reading one as a file would block forever.
        pipe.unlink()
    with contextlib.suppress(OSError):
        (place / "flight-recorder").rmdir()
    for path in place.glob("*.log"):
        if path.stat().st_size <= COMPRESS_FROM_BYTES:
            continue
        packed = path.with_name(path.name + ".gz")
        try:
            with open(path, "rb") as source, open(packed, "wb") as raw, _gzip(raw) as target:
                shutil.copyfileobj(source, target, 2**20)
        except OSError as error:
            packed.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
        else:
            path.unlink()


def _gzip(raw: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)


def _describe(out: Path, path: Path) -> File:
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return File(path=path.relative_to(out).as_posix(), size_bytes=path.stat().st_size, sha256=checksum)


def _holds(out: Path, file: File) -> bool:
    path = out / file.path
    if not path.resolve().is_relative_to(out.resolve()):
        return False
    try:
        return path.is_file() and path.stat().st_size == file.size_bytes and _describe(out, path) == file
    except OSError:
        return False
