"""Publishing results: nothing private stays in the logs, and every record still holds."""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest
from msgspec import structs

from harness.contract.errors import HarnessError
from harness.contract.outcome import Diagnosis, Evidence
from harness.contract.record import RECORD_VERSION, Environment, File, Record, Try, read_record
from harness.delivery.share import NOTE, share
from harness.supervisor import folder
from tests.engines.specs import make_spec

PRIVATE = "/home/somebody/secret-project/train.py failed on gke-pool-7 with hf_abcdefghijklmnopqrstuvwx"


def place(results: Path, config: str = "ddp") -> Path:
    """Where a study's results have the attempt."""
    return results / make_spec(config).path()


def an_attempt(out: Path, config: str = "ddp", **identity: str) -> Record:
    spec = make_spec(config, **{f"identity__{key}": value for key, value in identity.items()})
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


def test_a_redacted_record_still_holds(tmp_path: Path) -> None:
    out = place(tmp_path)
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


def test_a_second_share_changes_nothing(tmp_path: Path) -> None:
    out = place(tmp_path)
    an_attempt(out)
    out.with_name("a1.log").write_text(f"{PRIVATE}\nsecond /data/scratch/x/y.py token=abcdefgh\n")
    derived(tmp_path)
    share(tmp_path)
    derived(tmp_path, "made again")
    before = everything(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert share(tmp_path) == 0
    assert everything(tmp_path) == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


def test_cited_records_stay_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"found no attempt where a study has them .*; expected one study's results"):
        share(tmp_path)
    assert not list(tmp_path.iterdir())
    cited = structs.replace(an_attempt(tmp_path), source="a paper")
    folder.write_record(tmp_path, cited)
    assert share(tmp_path) == 0
    assert read_record(tmp_path / "record.json") == cited


def everything(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_only_one_studys_results_folder_is_shared(tmp_path: Path) -> None:
    an_attempt(place(tmp_path / "home/results/mine"))
    before = everything(tmp_path)
    run = place(tmp_path / "home/results/mine").parent
    for folder_ in (tmp_path, tmp_path / "home", tmp_path / "home/results", run, run.parent, tmp_path / "nowhere"):
        with pytest.raises(
            HarnessError, match=r"expected one study's results, for example results/NAME, or one attempt"
        ):
            share(folder_)
    assert everything(tmp_path) == before
    assert share(tmp_path / "home/results/mine") == 1


@pytest.mark.parametrize("second", ["another study", "another place"])
def test_a_lookalike_of_results_is_refused_untouched(tmp_path: Path, second: str) -> None:
    an_attempt(place(tmp_path))
    spec = make_spec("zero-1", identity__study="other")
    an_attempt(
        tmp_path / spec.path() if second == "another study" else place(tmp_path, "zero-2"), "zero-1", study="other"
    )
    before = everything(tmp_path)
    with pytest.raises(
        HarnessError, match="the records of 2 studies" if second == "another study" else "the record of"
    ):
        share(tmp_path)
    assert everything(tmp_path) == before


def test_probes_of_a_frontier_belong_to_the_study(tmp_path: Path) -> None:
    spec = make_spec("ddp")
    below = f"frontier/cpu-x2/ddp/matched/micro_batch/{spec.run_hash()[:12]}/a1"
    an_attempt(tmp_path / below)
    assert share(tmp_path) == 1
    assert "somebody" not in (tmp_path / below / "try-1/rank-0.log").read_text()


def test_a_tuned_attempt_with_trial_records_holds(tmp_path: Path) -> None:
    out = place(tmp_path)
    an_attempt(out / "trial-1", "zero-1")
    record = structs.replace(an_attempt(tmp_path / "other"), files=())
    (tmp_path / "other").rename(tmp_path.parent / f"{tmp_path.name}-other")
    folder.write_record(out, structs.replace(record, files=folder.list_files(out)))
    assert share(tmp_path) == 2
    for place_ in (out, out / "trial-1"):
        shared = read_record(place_ / "record.json")
        assert NOTE in shared.notes
        assert folder.unsound(place_, shared) == []


def test_a_missing_log_is_noted_beside_redaction(tmp_path: Path) -> None:
    out = place(tmp_path)
    an_attempt(out)
    (out / "try-1/rank-0.log").rename(out / "try-1/rank-9.log")
    assert share(tmp_path) == 1
    record = read_record(out / "record.json")
    assert "try-1/rank-0.log: gone before publication" in record.notes
    assert folder.unsound(out, record) == []


def test_an_unreadable_log_is_found_before_changes(tmp_path: Path) -> None:
    an_attempt(place(tmp_path))
    out = place(tmp_path, "zero-1")
    record = an_attempt(out, "zero-1")
    (out / "try-1/rank-1.log.gz").write_bytes(gzip.compress(b"words")[:-4])
    folder.write_record(out, structs.replace(record, files=folder.list_files(out)))
    before = everything(tmp_path)
    with pytest.raises(HarnessError, match=r"rank-1\.log\.gz: not a whole \.gz file"):
        share(tmp_path)
    assert everything(tmp_path) == before


def test_sharing_touches_nothing_outside_the_attempt(tmp_path: Path) -> None:
    out = place(tmp_path)
    record = an_attempt(out)
    (tmp_path / "mine.log").write_text(PRIVATE)
    outside = File(path="../../../../../mine.log", size_bytes=len(PRIVATE), sha256="0" * 64)
    folder.write_record(out, structs.replace(record, files=(*record.files, outside)))
    assert share(tmp_path) == 1
    assert (tmp_path / "mine.log").read_text() == PRIVATE


def test_unlisted_logs_are_redacted_too(tmp_path: Path) -> None:
    out = place(tmp_path)
    an_attempt(out)
    (out / "try-1/extra.log").write_text(PRIVATE)
    out.with_name("a1.log").write_text(PRIVATE)
    probe = tmp_path / "frontier/cpu-x2/ddp/matched/micro_batch.log"
    probe.parent.mkdir(parents=True)
    probe.write_text(PRIVATE)
    (out / "k8s.json").write_text(json.dumps({"pod": {"nodeName": "gke-pool-7"}, "log": [PRIVATE], "restarts": 2}))
    assert share(tmp_path) == 1
    for path in (out / "try-1/extra.log", out.with_name("a1.log"), probe, out / "k8s.json"):
        text = path.read_text()
        assert "somebody" not in text, path
        assert "gke-pool-7" not in text, path
        assert "hf_abc" not in text, path
    assert json.loads((out / "k8s.json").read_text())["restarts"] == 2
    assert folder.unsound(out, read_record(out / "record.json")) == []


def test_an_attempt_without_record_stops_sharing(tmp_path: Path) -> None:
    an_attempt(place(tmp_path))
    unfinished = place(tmp_path, "zero-1") / "try-1"
    unfinished.mkdir(parents=True)
    (unfinished / "rank-0.log").write_text(PRIVATE)
    with pytest.raises(HarnessError, match=r"zero-1/.*/a1: found no record\.json in it, .* finish their runs"):
        share(tmp_path)
    assert PRIVATE in (place(tmp_path) / "try-1/rank-0.log").read_text()


DERIVED = ("diagnoses.json", "report.md", "report.html", "plan.json", "frontier-plan.json", "manifests/job.yaml")


def derived(results: Path, text: str = PRIVATE) -> None:
    """What a workflow makes of the records."""
    (results / "manifests").mkdir(exist_ok=True)
    for name in (*DERIVED, "runs.csv"):
        (results / name).write_text(text)


def test_records_of_trials_and_tries_are_redacted(tmp_path: Path) -> None:
    out = place(tmp_path)
    for folder_, config in ((out, "ddp"), (out / "trial-1", "zero-1")):
        record = an_attempt(folder_, config)
        diagnosis = dataclasses.replace(record.diagnosis, sentence=f"Says {PRIVATE}")
        attempt = Try(
            index=1, remedy=None, environment={}, diagnosis=diagnosis, exits=(), launcher_exit_code=1, wall_s=1.0,
            last_step=None,
        )  # fmt: skip
        environment = Environment(
            versions={}, device_name=None, host={}, git_commit="0123456789" * 4,
            variables={"NCCL_HOSTID": "gke-pool-7", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        told = structs.replace(
            record, diagnosis=diagnosis, tries=(attempt,), environment=environment, notes=(f"note {PRIVATE}",),
            files=folder.list_files(folder_),
        )  # fmt: skip
        folder.write_record(folder_, told)
    assert share(tmp_path) == 2
    for folder_ in (out, out / "trial-1"):
        text = (folder_ / "record.json").read_text()
        assert not [word for word in ("somebody", "gke-pool-7", "hf_abc") if word in text]
        record = read_record(folder_ / "record.json")
        assert record.diagnosis.sentence == "Says /home1/train.py failed on <host1> with <token1>"
        assert record.tries[0].diagnosis.sentence == record.diagnosis.sentence
        assert record.notes == ("note /home1/train.py failed on <host1> with <token1>", NOTE)
        assert record.environment is not None
        assert record.environment.git_commit == "0123456789" * 4
        assert record.environment.variables == {"NCCL_HOSTID": "<host1>", "OMP_NUM_THREADS": "1"}


def test_reports_quoting_records_are_removed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results/test"
    an_attempt(place(results))
    derived(results)
    (results / "logs/runs").mkdir(parents=True)
    (results / "logs/report.log").write_text(PRIVATE)
    outside = tmp_path / "outside.log"
    outside.write_text(PRIVATE)
    (results / "logs/runs/a1.log").symlink_to(outside)
    share(Path("results/test"))
    said = capsys.readouterr().out
    assert "removed report.md, report.html, diagnoses.json: made again by" in said
    assert "`snakemake --profile local report --config study=test`" in said
    assert "removed plan.json, frontier-plan.json: made again by `snakemake --profile local plan" in said
    assert "removed manifests/job.yaml: made again by `snakemake --profile gke manifests" in said
    assert not [name for name in DERIVED if (results / name).exists()]
    assert (results / "runs.csv").exists()
    assert "somebody" not in (results / "logs/report.log").read_text()
    assert outside.read_text() == PRIVATE
    assert (results / "logs/runs/a1.log").is_symlink()


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HarnessError, match=r"/file: found a file; expected one study's results"):
        share(tmp_path / "file")
    with pytest.raises(HarnessError, match=r"/nowhere: found nothing of that name; expected one study's results"):
        share(tmp_path / "nowhere")


def test_here_is_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    an_attempt(place(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert share(Path()) == 1
