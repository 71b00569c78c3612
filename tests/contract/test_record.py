"""The record: round trip, closed outcomes, version and consistency refused by key."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.contract.errors import SpecError
from harness.contract.heartbeat import LINE_BYTES, HeartbeatWriter, read_heartbeat
from harness.contract.measured import Measured
from harness.contract.outcome import OUTCOMES, REMEDIES, Diagnosis, Evidence, outcome
from harness.contract.record import Record, Try, parse_record, read_record
from harness.contract.spec import parse_spec
from tests.contract.test_spec import PLAIN

ROOT = Path(__file__).resolve().parents[2]
DESIGN_SECTION_7 = """
ok cuda_oom cuda_oom_fragmentation host_oom collective_wedge wedge_masking_oom preemption launcher_args
config_error import_error rendezvous nccl_init cuda_error gpu_hardware driver_mismatch shm_exhausted disk_full
hub_download jit_build numerics data_error python_exception segfault image_pull unschedulable evicted
network_fault deadline
user_cancelled parity_mismatch upload_failed unknown""".split()  # noqa: SIM905


def a_record(**changes: Any) -> Record:
    spec = parse_spec(PLAIN)
    diagnosis = Diagnosis(outcome="ok", confidence="high", evidence=(Evidence(file="rank-0.log", line=3, text="x"),))
    values: dict[str, Any] = {
        "record_version": 1, "source": None, "spec": spec, "spec_hash": spec.hash(), "outcome": "ok",
        "diagnosis": diagnosis, "started_at": None, "ended_at": None, "wall_s": 1.5, "tries": (),
        "measured": Measured(step_time_s=0.5), "resolved": None, "environment": None, "files": (),
    }  # fmt: skip
    return Record(**{**values, **changes})


def test_a_record_survives_the_round_trip() -> None:
    record = a_record()
    assert parse_record(record.to_json()) == record


def test_every_stored_record_keeps_its_path_and_hash() -> None:
    paths = sorted((ROOT / "results").rglob("record.json"))
    assert len(paths) > 100
    for path in paths:
        record = read_record(path)
        assert record.spec_hash == record.spec.hash(), path
        folder = path.parent.relative_to(ROOT / "results")
        if "frontier" in folder.parts:  # there a probe's folder is its hash alone
            assert folder.parent.name == record.spec.run_hash()[:12]
        elif not folder.name.startswith("trial-"):
            assert folder == Path(folder.parts[0], record.spec.path())


def test_losses_that_are_not_numbers_stay_readable(tmp_path: Path) -> None:
    plain = a_record(measured=Measured(loss=[float("nan"), float("inf")])).to_json()
    (tmp_path / "record.json").write_text(json.dumps(plain))
    measured = read_record(tmp_path / "record.json").measured
    assert measured is not None and [str(loss) for loss in measured.loss] == ["nan", "inf"]


def test_unknown_keys_of_a_diagnosis_are_refused() -> None:
    plain = a_record().to_json()
    plain["diagnosis"]["evidence"][0]["txt"] = "x"
    with pytest.raises(SpecError, match=r"^diagnosis\.evidence\[0\]\.txt: unknown key; .*did you mean 'text'"):
        parse_record(plain)


def test_an_unknown_outcome_suggests_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"'cuda_omm'.*did you mean 'cuda_oom'"):
        outcome("cuda_omm")
    with pytest.raises(SpecError, match="found 'fine'"):
        Diagnosis(outcome="fine", confidence="high")


def test_a_record_cannot_contradict_itself() -> None:
    with pytest.raises(SpecError, match=r"diagnosis\.outcome: found 'ok', expected 'cuda_oom'"):
        a_record(outcome="cuda_oom")
    with pytest.raises(SpecError, match="record_version: found 9"):
        a_record(record_version=9)


def test_the_dagger_marks_numbers_that_needed_a_remedy() -> None:
    def attempt(remedy: str | None) -> Try:
        return Try(
            index=1, remedy=remedy, environment={}, diagnosis=Diagnosis(outcome="ok", confidence="high"), exits=(),
            launcher_exit_code=0, wall_s=1.0, last_step=1,
        )  # fmt: skip

    assert not a_record(tries=(attempt(None),)).dagger
    assert a_record(tries=(attempt(None), attempt("expandable-segments"))).dagger


def test_outcomes_are_the_closed_list_of_the_design() -> None:
    assert list(OUTCOMES) == DESIGN_SECTION_7
    for entry in OUTCOMES.values():
        assert entry.remedy is None or entry.remedy in REMEDIES


def test_a_heartbeat_is_overwritten_in_place(tmp_path: Any) -> None:
    writer = HeartbeatWriter(tmp_path, 3)
    path = tmp_path / "heartbeat-3.json"
    writer.beat(-1, "load")
    writer.beat(7, "backward", allocated_bytes=123, free_bytes=456)
    writer.beat(7, "step")
    last = read_heartbeat(path)
    assert last is not None
    assert (last.rank, last.step, last.phase, last.allocated_bytes, last.free_bytes) == (3, 7, "step", 123, 456)
    assert path.stat().st_size == LINE_BYTES


def test_no_heartbeat_yet_is_none(tmp_path: Any) -> None:
    assert read_heartbeat(tmp_path / "heartbeat-0.json") is None
    (tmp_path / "heartbeat-0.json").write_text("{")
    assert read_heartbeat(tmp_path / "heartbeat-0.json") is None
