"""What a call would launch, asked of the real Snakemake: nothing twice, nothing forgotten."""

import os
import shutil

import pytest
from dtbench.study.cell import at

from tests.workflow.conftest import STUDY, Checkout


def test_only_a_fresh_study_launches_runs(checkout: Checkout) -> None:
    assert checkout.preview() == sorted(run.path() for run in checkout.matrix.runs)
    checkout.finish_all()
    assert checkout.preview() == []


def test_deleting_one_record_launches_one_run(checkout: Checkout) -> None:
    checkout.finish_all()
    gone = checkout.matrix.runs[2]
    (checkout.results / gone.path() / "record.json").unlink()
    assert checkout.preview() == [gone.path()]


def forget(checkout: Checkout) -> None:
    """What `make clean`, or another checkout of the same results, leaves: no memory of Snakemake's own."""
    shutil.rmtree(checkout.folder / ".snakemake")


@pytest.mark.parametrize("remembers", [True, False])
def test_missing_runs_launch_despite_a_report(checkout: Checkout, remembers: bool) -> None:
    checkout.finish_all()
    checkout.run()
    if not remembers:
        forget(checkout)
    assert checkout.preview() == []
    gone = checkout.matrix.runs[1]
    (checkout.results / gone.path() / "record.json").unlink()
    assert checkout.preview() == [gone.path()]


def test_reruns_and_repeats_launch_despite_a_report(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.run()
    forget(checkout)
    again = checkout.preview(config=("rerun=all",))
    assert sorted(again) == sorted(f"{run.path()[:-1]}2" for run in checkout.matrix.runs)
    known = {run.path() for run in checkout.matrix.runs}
    checkout.write_study(STUDY % {"repeats": 3})
    assert set(checkout.preview()) == {run.path() for run in checkout.matrix.runs} - known


def test_editing_one_config_launches_exactly_its_runs(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.write_study(
        (STUDY % {"repeats": 2}).replace("override: {data: {micro_batch: 1}}", "override: {data: {micro_batch: 2}}")
    )
    launched = checkout.preview()
    assert len(launched) == 2
    assert {path.split("/")[1] for path in launched} == {"mine"}


def test_one_repeat_more_launches_one_block(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.write_study(STUDY % {"repeats": 3})
    assert {path.split("/")[3][:2] for path in checkout.preview()} == {"r3"}


def test_editing_code_launches_none(checkout: Checkout) -> None:
    checkout.finish_all()
    for name in (
        "workflow/scripts/run.py",
        "workflow/rules/run.smk",
        "harness/worker.py",
        "workflow/lib/dtbench/results/cells.py",
    ):
        path = checkout.folder / name
        path.write_text(path.read_text() + "\n# edited\n")
    assert checkout.preview() == []


def test_rerun_previews_the_selected_runs_next_attempt(checkout: Checkout) -> None:
    runs = checkout.matrix.runs
    for run, outcome in zip(runs, ("ok", "host_oom", "deadline", "ok"), strict=True):
        checkout.finish(run, outcome=outcome)
    oom, late = (run.path().replace("/a1", "/a2") for run in runs[1:3])
    assert checkout.preview(config=("rerun=failed",)) == sorted([oom, late])
    assert checkout.preview(config=("rerun=host_oom",)) == [oom]
    assert checkout.preview(config=("rerun=[host_oom,deadline]",)) == sorted([oom, late])
    assert checkout.preview(config=("rerun=all",)) == sorted(run.path().replace("/a1", "/a2") for run in runs)
    assert checkout.preview() == []


def test_an_empty_selection_lists_what_there_is(checkout: Checkout) -> None:
    runs = checkout.matrix.runs
    for run, outcome in zip(runs[:3], ("ok", "host_oom", "ok"), strict=True):
        checkout.finish(run, outcome=outcome)
    line = "selects no run; the study's runs are: host_oom (1), missing (1), ok (2)"
    assert checkout.run("-n", config=("rerun=deadline",)).count(f"rerun=deadline {line}") == 1
    assert "selects no run" not in checkout.run("-n", config=("rerun=failed",))
    assert "selects no run" not in checkout.run("-n")
    for run in runs:
        checkout.finish(run)
    text = checkout.run(config=("rerun=failed",))
    assert text.count("rerun=failed selects no run; the study's runs are: ok (4)") == 1


def test_report_never_launches_a_run(checkout: Checkout) -> None:
    assert checkout.preview("report") == []
    checkout.finish(checkout.matrix.runs[0], tokens_per_s=4321.0)
    text = checkout.run("report")
    assert "Report: results/small/report.md" in text
    report = (checkout.results / "report.md").read_text()
    assert "4321" in report
    assert "3 of 4 runs are missing" in report
    assert not list(checkout.results.rglob("try-*"))


def test_asking_for_the_report_rebuilds_it(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.run("report")
    checkout.finish(checkout.matrix.runs[0], tokens_per_s=9876.0)
    checkout.run("report")
    assert "9876" in (checkout.results / "runs.csv").read_text()


def test_an_edited_study_makes_the_report_again(checkout: Checkout) -> None:
    checkout.finish_all()
    original = "title: As it was\n" + STUDY % {"repeats": 2}
    checkout.write_study(original)
    checkout.run()
    checkout.write_study(original.replace("As it was", "Edited"))
    checkout.run("report")
    assert "Edited" in (checkout.results / "report.md").read_text()
    checkout.write_study(original)
    checkout.run()
    assert "As it was" in (checkout.results / "report.md").read_text()
    assert "Nothing to be done" in checkout.run()
    # A report asked for of the study as it is leaves nothing to make again.
    checkout.run("report")
    assert "Nothing to be done" in checkout.run()


def test_a_deleted_figure_is_restored_without_a_run(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.run()
    shown = ("report.md", "report.html", "runs.csv", "cells.csv", "diagnoses.json")
    shown += ("figures/throughput.svg", "figures/memory.svg")
    before = {name: (checkout.results / name).read_bytes() for name in shown}
    records = {path: path.stat().st_mtime_ns for path in checkout.results.rglob("record.json")}
    for gone in (("cells.csv",), ("diagnoses.json", "runs.csv"), ("figures/throughput.svg", "figures/memory.svg")):
        for name in gone:
            (checkout.results / name).unlink()
        checkout.run()
        assert {name: (checkout.results / name).read_bytes() for name in shown} == before, gone
    assert {path: path.stat().st_mtime_ns for path in records} == records
    assert "Nothing to be done" in checkout.run()


def test_snakemakes_own_report_shows_ours(checkout: Checkout) -> None:
    checkout.finish_all()
    said = checkout.run("--report", "whole.html", ok=False)
    assert "no report of the records as they are" in said
    checkout.run()
    checkout.run("--report", "whole.html")
    text = (checkout.folder / "whole.html").read_text()
    for name in ("report.html", "throughput.svg", "memory.svg", "cells.csv", "runs.csv"):
        assert f"results/small/{name}" in text or f"figures/{name}" in text, name
    for category in ("Report", "Figures", "Tables"):
        assert f'"{category}"' in text, category
    assert "Median tokens per second of all ranks" in text
    # Asking for it changes nothing that other calls look at.
    assert "Nothing to be done" in checkout.run()


def test_a_stale_figure_is_deleted(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.run()
    stale = checkout.results / "figures/old.svg"
    stale.touch()
    checkout.run("report")
    assert not stale.exists()
    assert "Nothing to be done" in checkout.run()


def test_an_unreadable_index_is_made_again(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.run()
    whole = (checkout.results / "diagnoses.json").read_text()
    (checkout.results / "diagnoses.json").write_text("[]")
    checkout.run()
    assert (checkout.results / "diagnoses.json").read_text() == whole
    assert "Nothing to be done" in checkout.run()


def test_edited_platforms_rewrite_the_report_and_launch_nothing(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.run()
    before = (checkout.results / "diagnoses.json").read_text()
    path = checkout.folder / "config/platforms.yaml"
    text = path.read_text()
    path.write_text(text.replace("note: Two ranks share", "note: Two processes share", 1))
    assert path.read_text() != text
    assert checkout.preview() == []
    checkout.run()
    assert (checkout.results / "diagnoses.json").read_text() != before


def test_snakemake_alone_prints_the_bill_once(checkout: Checkout) -> None:
    checkout.finish(checkout.matrix.runs[0])
    assert checkout.run("plan").count("Bill: 4 runs, 1 cached, 3 to run") == 1
    checkout.environment["DTBENCH_BILL_PRINTED"] = "1"
    assert "Bill:" not in checkout.run("plan")
    assert "Bill:" not in checkout.run("report")


def test_the_bill_comes_before_the_first_run(checkout: Checkout) -> None:
    checkout.finish_all()
    (checkout.results / checkout.matrix.runs[0].path() / "record.json").unlink()
    said = checkout.run("--until", "run")
    assert said.index("Bill: 4 runs, 3 cached, 1 to run") < said.index("ok")


def test_manifests_are_written_without_a_cluster(checkout: Checkout) -> None:
    (checkout.folder / "gke").symlink_to("profiles/gke")
    assert "expected snakemake --profile gke manifests" in checkout.run("manifests", ok=False)


def test_a_clone_runs_its_own_code(checkout: Checkout) -> None:
    checkout.environment |= {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    codec = checkout.folder / "harness/contract/codec.py"
    codec.write_text(codec.read_text().replace("unknown key", "no key of this clone"))
    path = checkout.finish(checkout.matrix.runs[0])
    path.write_text(path.read_text().replace('"record_version"', '"record_versoin"'))
    assert "record_versoin: no key of this clone" in checkout.run("report"), "in a job"
    checkout.write_study("platforms: [cpu-x2]\nrepeates: 2\n")
    assert "repeates: no key of this clone" in checkout.run("-n", ok=False), "in the Snakefile"


def test_a_new_record_reaches_every_table(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.run()
    checkout.finish(checkout.matrix.runs[0], tokens_per_s=5678.0)
    checkout.run()
    assert "5678" in (checkout.results / "runs.csv").read_text()
    assert "5678" in (checkout.results / "report.md").read_text()


def test_a_slow_clocks_attempt_reaches_the_report(checkout: Checkout) -> None:
    checkout.finish_all()
    checkout.run()
    run = checkout.matrix.runs[0]
    checkout.finish(at(run, attempt=2), tokens_per_s=4321.0)
    os.utime(checkout.results / at(run, attempt=2).path() / "record.json", (1.0, 1.0))
    checkout.run()
    assert "4321" in (checkout.results / "report.md").read_text()
    assert "Nothing to be done" in checkout.run()


def test_a_bad_study_is_refused_in_two_lines(checkout: Checkout) -> None:
    checkout.write_study("platforms: [cpu-x2]\nrepeates: 2\n")
    text = checkout.run("-n", ok=False)
    assert "config/small.yaml: repeates: unknown key" in text
    assert "did you mean 'repeats'?" in text
    assert "Traceback" not in text


def test_bad_options_are_refused_in_words(checkout: Checkout) -> None:
    assert "did you mean 'failed'?" in checkout.run("-n", config=("rerun=faild",), ok=False)
    assert "did you mean 'rerun'?" in checkout.run("-n", config=("rerum=failed",), ok=False)
    (checkout.folder / "file").touch()
    text = checkout.run("-n", config=("results=file/below",), ok=False)
    assert "--config results=file/below: file is a file" in text
    assert "Traceback" not in text
    text = checkout.run("-n", config=("study=smal",), ok=False)
    assert "study 'smal': not found" in text
    assert "did you mean 'small'?" in text


def test_plan_writes_the_missing_runs(checkout: Checkout) -> None:
    checkout.finish(checkout.matrix.runs[0])
    assert "3 missing runs: results/small/plan.json" in checkout.run("plan")


def test_a_killed_clients_lock_blocks_nobody(checkout: Checkout) -> None:
    checkout.finish_all()
    locks = checkout.folder / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/small/report.md\n")
    assert checkout.preview() == []


def test_missing_gpus_are_refused_before_any_run(checkout: Checkout) -> None:
    checkout.write_study((STUDY % {"repeats": 1}).replace("cpu-x2", "h100-x8"))
    checkout.environment["CUDA_VISIBLE_DEVICES"] = ""
    said = checkout.run(ok=False)
    assert "platform h100-x8: found 0 GPUs on this machine, expected 8" in said
    assert "dtbench init MODEL" in said
    assert "Traceback" not in said
    assert not list(checkout.results.rglob("record.json"))
