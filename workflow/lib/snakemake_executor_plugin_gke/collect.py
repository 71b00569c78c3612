"""Copy a finished attempt from the bucket into results/: each file is verified and written atomically."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from harness.contract.errors import SpecError
from harness.contract.files import part_of, remove_leftovers, write_atomically
from harness.contract.frontier import Frontier, parse_frontier
from harness.contract.record import File, Record, parse_record
from harness.contract.spec import RunSpec

from .errors import Damaged, Missing
from .status import join_receipts, receipts

RECEIPTS = "receipts.json"
"""In a study's folder: what the cloud answered to requests for machines."""
RECORD_BYTES = 16 * 2**20
"""A record of hundreds of ranks and thousands of steps has a few MiB; parsing takes several times its size."""
NAME_BYTES = 255 - 40
"""Longest name of a file, less what its unfinished copy adds."""
ANEW = "to run it anew delete {} there and its Job"


class Source(Protocol):
    """The part of the bucket that collecting needs."""

    def read(self, name: str, limit_bytes: int) -> bytes: ...

    def fetch(self, name: str, path: Path, size_bytes: int) -> None: ...

    def sizes(self, folder: str) -> dict[str, int]: ...


def collect(
    source: Source, remote: str, record_name: str, folder: Path, spec: RunSpec,
    settle: Callable[[Record], Record | None] = lambda record: record,
) -> Record | None:  # fmt: skip
    """Copy the attempt at `remote` into `folder`, record.json last and each file atomically.

    `record_name` is the object that holds the record, below `remote`. Files already there with the right checksum
    are not fetched again. `settle` returns the record to write, or None to write none yet: a record says that all the
    rest is there. Returns the record written. Raises Unavailable, Refused, Damaged.
    """
    raw = source.read(f"{remote}/{record_name}", RECORD_BYTES)
    record = check_record(raw, spec, f"{remote}/{record_name}")
    check_paths(record, f"{remote}/{record_name}")
    remove_leftovers(list(folder.rglob(".*.part")))
    # Each pod uploads below its own folder; older versions put a finished attempt's files beside its record.
    below = Path(record_name).parent.as_posix()
    places = [f"{remote}/pods/{record.pod}", remote] if below == "." else [f"{remote}/{below}"]
    for file in record.files:
        try:
            places = _fetched(source, places, file, folder, remote)
        except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            raise Damaged(
                f"{remote}/{file.path}: cannot be written below {folder}: {error.strerror}: {error.filename}"
            ) from None
    fetch_node_logs(source, remote, folder, spec)
    settled = settle(record)
    if settled is record:
        write_atomically(folder / "record.json", raw, durable=True)
    elif settled is not None:
        write_json(folder / "record.json", settled.to_json())
    return settled


def fetch_node_logs(source: Source, remote: str, folder: Path, spec: RunSpec) -> None:
    """Copy to FOLDER/nodes/<n>/<pod>/ the logs of nodes that lost node 0: they are in no record's list of files.

    Names that cannot lie below `folder` are left out. Files already there are whole and stay. Raises Unavailable,
    Refused.
    """
    if spec.platform.nodes == 1:
        return
    for path, size_bytes in sorted(source.sizes(f"{remote}/nodes").items()):
        target = folder / "nodes" / path
        if _unfit(path) or path.endswith("/") or target.exists():
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except (NotADirectoryError, FileExistsError):
            continue  # a name that is a file and a folder at once: no reason to lose the record
        part = part_of(target)
        try:
            source.fetch(f"{remote}/nodes/{path}", part, size_bytes)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _fetched(source: Source, places: list[str], file: File, folder: Path, remote: str) -> list[str]:
    """Fetch one file from the first of `places` that has it; returns the places to look in for the others."""
    target = folder / file.path
    if target.is_file() and _sha256(target) == file.sha256:
        return places
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(target)
    try:
        for place in places:
            try:
                source.fetch(f"{place}/{file.path}", part, file.size_bytes)
            except Missing:
                if place == places[-1]:
                    raise
                continue
            if (found := _sha256(part)) != file.sha256:
                raise Damaged(
                    f"{place}/{file.path}: found sha256 {found[:12]}..., record says {file.sha256[:12]}...: "
                    f"the bucket's copy is damaged or was overwritten; {ANEW.format(remote + '/')}"
                )
            part.replace(target)
            return [place]
        return places
    finally:
        part.unlink(missing_ok=True)


def check_record(raw: bytes | str, spec: RunSpec, where: str) -> Record:
    """Decode a record and check that it belongs to the spec. Raises Damaged."""
    try:
        record = parse_record(json.loads(raw))
    except (ValueError, SpecError, RecursionError) as error:
        raise Damaged(f"{where}: not a record: {error}; {ANEW.format('it')}") from None
    if record.spec_hash != spec.hash():
        raise Damaged(f"{where}: found a record of spec {record.spec_hash[:12]}, expected {spec.hash()[:12]}")
    if (found := record.spec.hash()) != record.spec_hash:
        raise Damaged(f"{where}: the record says spec {record.spec_hash[:12]}, but the spec inside is {found[:12]}")
    return record


def check_frontier(raw: bytes, spec: RunSpec, where: str) -> Frontier:
    """Decode the result of a search and check that it belongs to the spec. Raises Damaged."""
    try:
        found = parse_frontier(json.loads(raw))
    except (ValueError, SpecError, RecursionError) as error:
        raise Damaged(f"{where}: not the result of a search: {error}; {ANEW.format('it')}") from None
    expected = (spec.platform.name, spec.identity.config, spec.identity.arm, spec.protocol.ladder_over)
    if (found.platform, found.config, found.arm, found.over) != expected:
        raise Damaged(f"{where}: found the result of another search, expected that of {' '.join(expected)}")
    return found


def check_paths(record: Record, where: str) -> None:
    """Refuse a record whose files cannot all lie below one folder, each under its own name. Raises Damaged."""
    files: set[tuple[str, ...]] = set()
    folders: set[tuple[str, ...]] = set()
    for file in record.files:
        parts = Path(file.path).parts
        above = {parts[:n] for n in range(1, len(parts))}
        why = _unfit(file.path)
        if parts in files or parts in (("record.json",), ("k8s.json",)):
            why = "is there twice"
        elif parts in folders or above & files:
            why = "is a file and a folder at once"
        if why:
            raise Damaged(f"{where}: lists {file.path[:80]!r}, which {why}; {ANEW.format('the record')}")
        files.add(parts)
        folders |= above


def _unfit(path: str) -> str | None:
    """Why a path cannot be that of a file below a folder."""
    parts = Path(path).parts
    if Path(path).is_absolute() or ".." in parts:
        return "lies outside the attempt's folder"
    if not parts or not path.isprintable():
        return "is not the name of a file"
    if max(len(p.encode()) for p in parts) > NAME_BYTES:
        return f"has a name of more than {NAME_BYTES} bytes"
    return None


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, readable and with a final newline."""
    write_atomically(path, json.dumps(value, indent=1, sort_keys=True) + "\n", durable=True)


def keep_receipts(folders: dict[str, Path], jobs: dict[str, Any], events: list[Any]) -> None:
    """Add to receipts.json of each study what the cloud answered; events expire after an hour.

    `folders` has the study's folder of each Job by its name.
    """
    for folder in set(folders.values()):
        mine = {name: job for name, job in jobs.items() if folders.get(name) == folder}
        path = folder / RECEIPTS
        try:
            kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
            joined = join_receipts(kept, receipts(mine, events))
            if joined != kept:
                folder.mkdir(parents=True, exist_ok=True)
                write_json(path, joined)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a file that is damaged or cannot be written must not end a poll


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
