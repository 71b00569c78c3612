"""Store the reference run's training beside the study's runs, so that later runs can be compared with it.

    <study>/references/<key>.json      a `Reference`; equal keys mean the same training

Below the study's folder, or below its prefix in a bucket. Losses travel in these files because a spec's hash must not
depend on them.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contract.codec import decode, encode
from harness.contract.errors import DeliveryError, SpecError
from harness.contract.files import write_atomically
from harness.contract.parity import REFERENCE, Reference, same_training, trace_of
from harness.contract.record import Record
from harness.contract.spec import RunSpec
from harness.supervisor import folder
from harness.supervisor.progress import say

if TYPE_CHECKING:
    from harness.delivery.upload import Bucket

FOLDER = "references"
UNCOMPARED = "not compared before timing: no finished reference run of the same training lies beside this one"


def hand_over(spec: RunSpec, out: Path, bucket: "Bucket | None") -> str | None:
    """Copy the reference's training, if there is one, to where the ranks read it; returns a note for the record."""
    if spec.identity.reference or spec.protocol.ladder:
        return None
    found = _below_study(spec, out) or (_in_bucket(spec, bucket) if bucket else None)
    if found is None:
        return UNCOMPARED
    write_atomically(out / REFERENCE, _text(found))
    return f"compared before timing with {found.path}, whose record has sha256 {found.record}"


def leave(record: Record, out: Path, bucket: "Bucket | None") -> None:
    """Leave a finished reference run's training for the runs after it; a failure to write is only printed."""
    spec, measured = record.spec, record.measured
    if not spec.identity.reference or record.outcome != "ok" or measured is None or not measured.loss:
        return
    if not all(map(math.isfinite, measured.loss)):
        return
    trace = encode(trace_of(measured))
    text = _text(decode(Reference, trace | {"path": spec.path(), "record": _digest(out)}))
    try:
        if root := _root(spec, out):
            (root / FOLDER).mkdir(exist_ok=True)
            write_atomically(root / FOLDER / _name(spec), text)
        if bucket:
            bucket.put_beside(spec, f"{FOLDER}/{_name(spec)}", text)
    except (OSError, DeliveryError) as error:
        say(f"the runs after this reference will not find it: {error}")


def _below_study(spec: RunSpec, out: Path) -> Reference | None:
    root = _root(spec, out)
    path = root / FOLDER / _name(spec) if root else None
    if root is None or path is None or not path.is_file():
        return None
    found = _parse(path.read_bytes())
    # The record may have been deleted or written again since; then this file does not belong to it.
    same = found and (root / found.path / folder.RECORD).is_file() and found.record == _digest(root / found.path)
    return found if same else None


def _in_bucket(spec: RunSpec, bucket: "Bucket") -> Reference | None:
    try:
        raw = bucket.read_beside(spec, f"{FOLDER}/{_name(spec)}")
    except DeliveryError as error:
        say(f"no reference to compare with: {error}")
        return None
    return _parse(raw) if raw else None


def _parse(raw: bytes) -> Reference | None:
    try:
        return decode(Reference, json.loads(raw))
    except (ValueError, SpecError):
        return None


def _root(spec: RunSpec, out: Path) -> Path | None:
    """The study's folder; None when the attempt's folder is not where a study has it."""
    parts = Path(spec.path()).parts
    return out.parents[len(parts) - 1] if out.parts[-len(parts) :] == parts else None


def _name(spec: RunSpec) -> str:
    return f"{same_training(spec)[:12]}.json"


def _digest(attempt: Path) -> str:
    return hashlib.sha256((attempt / folder.RECORD).read_bytes()).hexdigest()


def _text(reference: Reference) -> str:
    return json.dumps(encode(reference), indent=1) + "\n"
