"""Publishing results: nothing private stays in the logs, and every record still holds."""

import dataclasses
from pathlib import Path

import pytest

from harness.contract.diagnosis import Diagnosis, Evidence
from harness.contract.errors import HarnessError
from harness.contract.record import RECORD_VERSION, Record, read_record
from harness.supervisor import folder
from harness.supervisor.share import NOTE, share
from tests.engines.specs import make_spec

PRIVATE = "/home/somebody/secret-project/train.py failed on gke-pool-7 with hf_abcdefghijklmnopqrstuvwx"


def an_attempt(out: Path) -> Record:
    spec = make_spec("ddp")
    out.mkdir(parents=True, exist_ok=True)
    folder.prepare(out, spec)
    (out / "try-1/flight-recorder").mkdir(parents=True)
    (out / "try-1/rank-0.log").write_text(f"first\n{PRIVATE}\n")
    (out / "try-1/flight-recorder/rank_0").write_bytes(b"\x80\x04pickle")
    diagnosis = Diagnosis(
        outcome="unknown", confidence="low", evidence=(Evidence(file="rank-0.log", line=2, text=PRIVATE),)
    )
    record = Record(
        record_version=RECORD_VERSION, source=None, spec=spec, spec_hash=spec.hash(), outcome="unknown",
        diagnosis=diagnosis, started_at=None, ended_at=None, wall_s=1.0, tries=(), measured=None, resolved=None,
        environment=None, files=folder.list_files(out),
    )  # fmt: skip
    folder.write_record(out, record)
    return record


def test_logs_and_evidence_are_redacted_and_the_record_still_holds(tmp_path: Path) -> None:
    out = tmp_path / "study/cpu-x2/ddp/matched/r1-0/a1"
    before = an_attempt(out)
    assert share(tmp_path) == 1
    log = (out / "try-1/rank-0.log").read_text()
    assert "somebody" not in log
    assert "hf_" not in log
    assert log.startswith("first\n")
    assert "train.py failed on" in log
    record = folder.finished(out, before.spec)
    assert record is not None
    assert NOTE in record.notes
    assert "somebody" not in record.diagnosis.evidence[0].text
    assert not (out / "try-1/flight-recorder/rank_0").exists()


def test_a_second_call_changes_nothing(tmp_path: Path) -> None:
    an_attempt(tmp_path)
    share(tmp_path)
    first = (tmp_path / "record.json").read_bytes()
    assert share(tmp_path) == 0
    assert (tmp_path / "record.json").read_bytes() == first


def test_cited_records_are_left_alone_and_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"found no record\.json below it"):
        share(tmp_path)
    cited = dataclasses.replace(an_attempt(tmp_path), source="a paper")
    folder.write_record(tmp_path, cited)
    assert share(tmp_path) == 0
    assert read_record(tmp_path / "record.json") == cited
