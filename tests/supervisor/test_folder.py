"""The attempt's folder: cleaned of unfinished work only, finished by a record whose list holds."""

import gzip
import json
import os
from pathlib import Path

import pytest

from harness.contract.errors import SpecError
from harness.contract.outcome import Diagnosis
from harness.contract.record import RECORD_VERSION, File, Record
from harness.supervisor import folder
from tests.engines.specs import make_spec

SPEC = make_spec("ddp")


def test_preparing_removes_only_an_unfinished_attempts_files(tmp_path: Path) -> None:
    for name in ("try-1/rank-0.log", "try-2/rank-0.log", "record.json", "telemetry.jsonl", "notes/mine.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    folder.prepare(tmp_path, SPEC)
    left = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"spec.json", "notes/mine.txt", folder.RESERVE, folder.TORN}
    assert (tmp_path / folder.TORN).read_text() == "x"
    assert json.loads((tmp_path / "spec.json").read_text()) == SPEC.to_json()
    assert (tmp_path / folder.RESERVE).stat().st_blocks * 512 >= folder.RESERVE_BYTES


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"record_version": 1}'])
def test_an_unreadable_record_is_no_finished_attempt(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    assert folder.finished(tmp_path, SPEC) is None


def a_record(out: Path) -> Record:
    """A finished attempt of two logs."""
    folder.prepare(out, SPEC)
    (out / "try-1").mkdir()
    for rank in (0, 1):
        (out / f"try-1/rank-{rank}.log").write_text("words\n")
    record = Record(
        record_version=RECORD_VERSION, source=None, spec=SPEC, spec_hash=SPEC.hash(), outcome="unknown",
        diagnosis=Diagnosis(outcome="unknown", confidence="low"), started_at=None, ended_at=None, wall_s=1.0, tries=(),
        measured=None, resolved=None, environment=None, files=folder.list_files(out),
    )  # fmt: skip
    folder.write_record(out, record)
    return record


def test_a_finished_record_names_its_missing_files(tmp_path: Path) -> None:
    record = a_record(tmp_path)
    assert folder.finished(tmp_path, SPEC) == record
    assert folder.unsound(tmp_path, record) == []
    (tmp_path / "try-1/rank-1.log").unlink()
    (tmp_path / "try-1/rank-0.log").write_text("torn")
    assert folder.finished(tmp_path, SPEC) == record
    lost = folder.unsound(tmp_path, record)
    assert lost == ["try-1/rank-0.log", "try-1/rank-1.log"]
    rest = folder.without(record, lost)
    assert [file.path for file in rest.files] == ["spec.json"]
    assert folder.unsound(tmp_path, rest) == []
    assert rest.notes[-1] == "try-1/rank-1.log: gone or changed after the record was written"


def test_a_record_of_other_code_is_kept(tmp_path: Path) -> None:
    a_record(tmp_path)
    plain = json.loads((tmp_path / "record.json").read_text()) | {"a_field_of_tomorrow": 1}
    (tmp_path / "record.json").write_text(json.dumps(plain))
    with pytest.raises(SpecError, match=r"a_field_of_tomorrow: unknown key; .* move it away to run the attempt again"):
        folder.finished(tmp_path, SPEC)


def test_a_record_without_read_permission_is_kept(tmp_path: Path) -> None:
    (tmp_path / "record.json").mkdir()  # permissions do not stop root; this stops everybody
    with pytest.raises(SpecError, match=r"record\.json: cannot be read: .* move it away to run the attempt again"):
        folder.finished(tmp_path, SPEC)


def test_an_unreadable_listed_file_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = a_record(tmp_path)

    def refuse(out: Path, path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(folder, "_describe", refuse)
    assert "try-1/rank-0.log" in folder.unsound(tmp_path, record)


def test_another_specs_record_is_refused_without_its_files(tmp_path: Path) -> None:
    a_record(tmp_path)
    (tmp_path / "try-1/rank-1.log").unlink()
    with pytest.raises(SpecError, match="holds the finished record of spec"):
        folder.finished(tmp_path, make_spec("zero-1"))


def test_a_large_log_compresses_to_the_same_bytes(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(200_000))
    packed = []
    for name in ("a", "b"):
        place = tmp_path / name / "try-1"
        place.mkdir(parents=True)
        (place / "rank-0.log").write_text(text)
        (place / "rank-1.log").write_text("short\n")
        (place / "stacks-0.txt").touch()
        (place / "flight-recorder").mkdir()
        folder.tidy(tmp_path / name)
        assert {p.name for p in place.iterdir()} == {"rank-0.log.gz", "rank-1.log"}
        packed.append((place / "rank-0.log.gz").read_bytes())
    assert gzip.decompress(packed[0]).decode() == text
    assert packed[0] == packed[1]


def test_only_our_files_are_listed_with_checksum(tmp_path: Path) -> None:
    folder.prepare(tmp_path, SPEC)
    (tmp_path / "try-1").mkdir()
    (tmp_path / "try-1" / "launcher.log").write_text("abc")
    (tmp_path / "foreign").write_text("abc")
    spec_file, log = folder.list_files(tmp_path)
    assert spec_file.path == "spec.json"
    checksum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert log == File(path="try-1/launcher.log", size_bytes=3, sha256=checksum)


def test_parts_of_a_killed_writer_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / ".record.json.0a1b2c3d.4e5f6a7b.123.part").touch()
    folder.prepare(tmp_path, SPEC)
    assert not list(tmp_path.glob(".*.part"))


def test_the_door_bells_of_nccl_do_not_stay(tmp_path: Path) -> None:
    recorder = tmp_path / "try-1/flight-recorder"
    recorder.mkdir(parents=True)
    os.mkfifo(recorder / "rank_0.pipe")
    folder.tidy(tmp_path)
    assert not recorder.exists()
