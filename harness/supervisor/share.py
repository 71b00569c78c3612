"""`python -m harness share FOLDER`: make records fit to be published, without hosts, users, paths and tokens.

Logs are redacted in place, and each record's list of files is written anew, so that it still holds. What is not
text (a flight recorder's dump names source paths in a pickle) is taken out, and the record says so.
"""

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path

from harness.contract.diagnosis import Diagnosis
from harness.contract.errors import HarnessError
from harness.contract.record import Record, read_record
from harness.diagnosis.redact import Redactor
from harness.supervisor.folder import RECORD, list_files, write_record

NOTE = "logs redacted for publication"
TEXT = (".log", ".txt", ".jsonl", ".log.gz", ".txt.gz")
VERBATIM = (".json",)
"""Written by this harness, which keeps hosts, users and paths out of them."""


def share(root: Path) -> int:
    """Redact every attempt below `root` that is not yet marked so; returns their number.

    Raises HarnessError when there is no record below it.
    """
    paths = sorted(root.rglob(RECORD))
    if not paths:
        raise HarnessError(f"{root}: found no {RECORD} below it; name a study's folder, for example results/NAME")
    records = [(path.parent, read_record(path)) for path in paths]
    fresh = [(folder, record) for folder, record in records if NOTE not in record.notes and record.source is None]
    for folder, record in fresh:
        write_record(folder, _shared(folder, record))
    return len(fresh)


def _shared(folder: Path, record: Record) -> Record:
    redactor = Redactor()
    for file in record.files:
        path = folder / file.path
        if path.name.endswith(TEXT):
            _rewrite(path, redactor.line)
        elif not path.name.endswith(VERBATIM):
            path.unlink()
    return dataclasses.replace(
        record,
        diagnosis=_redacted(record.diagnosis, redactor),
        tries=tuple(dataclasses.replace(t, diagnosis=_redacted(t.diagnosis, redactor)) for t in record.tries),
        files=list_files(folder),
        notes=(*record.notes, NOTE),
    )


def _redacted(diagnosis: Diagnosis, redactor: Redactor) -> Diagnosis:
    evidence = tuple(dataclasses.replace(e, text=redactor.line(e.text)) for e in diagnosis.evidence)
    return dataclasses.replace(diagnosis, evidence=evidence)


def _rewrite(path: Path, line: Callable[[str], str]) -> None:
    packed = path.name.endswith(".gz")
    raw = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    text = "".join(line(part) for part in raw.decode("utf-8", "replace").splitlines(keepends=True)).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
