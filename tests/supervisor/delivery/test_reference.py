"""The reference's training on its way to the runs after it: beside the study's runs, or in their bucket."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from harness.contract.codec import decode_file
from harness.contract.measured import Measured
from harness.contract.outcome import Diagnosis
from harness.contract.parity import REFERENCE, Reference
from harness.contract.record import RECORD_VERSION, Record
from harness.contract.spec import RunSpec
from harness.delivery import reference
from harness.supervisor import folder
from tests.engines.specs import make_spec

FIRST = make_spec("ddp", identity__reference=True)
AFTER = make_spec("zero-3")


def record_of(spec: RunSpec, *, outcome: str = "ok", loss: list[float] | None = None) -> Record:
    measured = Measured(loss=loss or [8.0, 7.0], grad_norm=[2.0, 1.5], moved={"layers.0": 1e-3}, outputs={"embed": 0.1})
    return Record(
        record_version=RECORD_VERSION, source=None, spec=spec, spec_hash=spec.hash(), outcome=outcome,
        diagnosis=Diagnosis(outcome=outcome, confidence="high"), started_at=None, ended_at=None, wall_s=1.0, tries=(),
        measured=measured, resolved=None, environment=None, files=(),
    )  # fmt: skip


def finish(study: Path, record: Record) -> Path:
    """Leave a record where its run has it, as the supervisor does."""
    out = study / record.spec.path()
    out.mkdir(parents=True, exist_ok=True)
    folder.write_record(out, record)
    reference.leave(record, out, None)
    return out


def handed(study: Path, spec: RunSpec) -> str | None:
    out = study / spec.path()
    out.mkdir(parents=True, exist_ok=True)
    return reference.hand_over(spec, out, None)


def test_a_later_run_names_its_reference(tmp_path: Path) -> None:
    finish(tmp_path, record_of(FIRST))
    note = handed(tmp_path, AFTER)
    assert note is not None and note.startswith(f"compared before timing with {FIRST.path()}, whose record has sha256 ")
    found = decode_file(Reference, tmp_path / AFTER.path() / REFERENCE)
    assert (found.loss, found.grad_norm, found.moved) == ([8.0, 7.0], [2.0, 1.5], {"layers.0": 1e-3})


def test_a_run_without_a_reference_says_so(tmp_path: Path) -> None:
    assert handed(tmp_path, AFTER) == reference.UNCOMPARED
    assert not (tmp_path / AFTER.path() / REFERENCE).exists()
    assert handed(tmp_path, FIRST) is None, "the reference itself has nothing to be compared with"


def test_other_data_gets_no_reference(tmp_path: Path) -> None:
    finish(tmp_path, record_of(FIRST))
    other = structs.replace(AFTER, data=structs.replace(AFTER.data, micro_batch=2))
    assert handed(tmp_path, other) == reference.UNCOMPARED


@pytest.mark.parametrize(
    "record", [record_of(FIRST, outcome="cuda_oom"), record_of(FIRST, loss=[8.0, float("nan")]), record_of(AFTER)]
)
def test_only_a_finished_reference_is_left(tmp_path: Path, record: Record) -> None:
    reference.leave(record, tmp_path / record.spec.path(), None)
    assert not (tmp_path / reference.FOLDER).exists()


def test_a_reference_without_its_record_is_unused(tmp_path: Path) -> None:
    out = finish(tmp_path, record_of(FIRST))
    (out / "record.json").unlink()
    assert handed(tmp_path, AFTER) == reference.UNCOMPARED


def test_a_torn_reference_is_not_used(tmp_path: Path) -> None:
    finish(tmp_path, record_of(FIRST))
    (left,) = (tmp_path / reference.FOLDER).iterdir()
    left.write_text(json.dumps({"loss": "?"}))
    assert handed(tmp_path, AFTER) == reference.UNCOMPARED
