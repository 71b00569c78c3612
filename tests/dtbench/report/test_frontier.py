"""A study's fit frontiers and trials: what is asked for, and what the tables say of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dtbench.report.document import build, write_report
from dtbench.report.frontier_rows import FILE, frontier_rows, frontier_specs, write_frontier, write_frontier_plan
from dtbench.slurm import slurm_request
from dtbench.study.matrix import Matrix
from msgspec import structs

from harness.contract.engines import CONFIGS, ENGINES, parse_settings, resolve_settings
from harness.contract.errors import SpecError
from harness.contract.frontier import Frontier, Probe, Rung, probe_spec
from harness.contract.measured import Trial
from harness.plans import read_frontier_plan
from tests.dtbench.conftest import make_record, run_of, write_record

Load = Callable[[str], Matrix]
STUDY = "platforms: [h200-x2]\nconfigs: [ddp, zero-3]\narms: [defaults, matched]\nrepeats: 1\n"
BOTH = (
    STUDY + "frontier:\n  - {over: micro_batch, limit: 24, arm: matched}\n  - {over: sequence_length, config: zero-3}\n"
)
PLACE = "frontier/h200-x2/zero-3/matched/micro_batch"


def found(**changes: Any) -> Frontier:
    fits = Rung(size=9, fits=True, peak_allocated_bytes=130_000_000_000, step_time_s=2.5)
    fails = Rung(size=10, fits=False, outcome="cuda_oom", phase="backward", asked_bytes=2_000_000_000)
    probe = Probe(folder="x/a1", ladder=(9, 10), outcome="cuda_oom", wall_s=60.0, rungs=(fits, fails))
    numbers: dict[str, Any] = {
        "platform": "h200-x2", "config": "zero-3", "arm": "matched", "over": "micro_batch", "resolution": 1,
        "limit": 24, "largest_fit": 9, "smallest_fail": 10, "predicted": 12, "capacity_bytes": 148_000_000_000,
        "ended": "found", "probes": (probe,),
    }  # fmt: skip
    return Frontier(**(numbers | changes))


def lay(results: Path, frontier: Frontier, matrix: Matrix) -> Path:
    """As the search leaves it: a probe's folder is named by the hash of what it ran."""
    spec = frontier_specs(matrix)[PLACE].spec
    probes = (structs.replace(p, folder=f"{probe_spec(spec, p.ladder).run_hash()[:12]}/a2") for p in frontier.probes)
    path = results / PLACE / FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(structs.replace(frontier, probes=tuple(probes)).to_json()))
    return path


def test_a_study_names_its_frontiers_by_pattern(study: Load) -> None:
    specs = frontier_specs(study(BOTH))
    assert list(specs) == [
        "frontier/h200-x2/ddp/matched/micro_batch",
        "frontier/h200-x2/zero-3/matched/micro_batch",
        "frontier/h200-x2/zero-3/defaults/sequence_length",
        "frontier/h200-x2/zero-3/matched/sequence_length",
    ]
    first = specs["frontier/h200-x2/ddp/matched/micro_batch"]
    assert first.spec.protocol.ladder_over == "micro_batch"
    assert first.options == [
        "--over",
        "micro_batch",
        "--limit",
        "24",
        "--resolution",
        "1",
        "--rungs",
        "8",
        "--processes",
        "6",
    ]
    assert slurm_request(first.spec)["gres"] == "gpu:2"


def test_the_tuned_arm_has_no_frontier(study: Load) -> None:
    text = STUDY.replace("defaults, matched", "matched, tuned") + "frontier: {over: sequence_length}\n"
    assert all("/matched/sequence_length" in place for place in frontier_specs(study(text)))


def test_the_plan_is_what_the_command_reads(study: Load, tmp_path: Path) -> None:
    matrix = study(BOTH)
    write_frontier_plan(matrix, tmp_path)
    plan = read_frontier_plan(tmp_path / "frontier-plan.json")
    assert plan == tuple(frontier_specs(matrix).values())
    assert [wanted.bounds.limit for wanted in plan] == [24, 24, 32768, 32768]


def test_a_row_sets_the_prediction_beside_the_measurement(study: Load, tmp_path: Path) -> None:
    matrix = study(BOTH)
    assert frontier_rows(matrix, tmp_path) == []
    lay(tmp_path, found(), matrix)
    (row,) = frontier_rows(matrix, tmp_path)
    # The search went by 12; today's ledger says 8 for ZeRO with fp32 gradients.
    assert (row.largest_fit, row.smallest_fail, row.predicted) == (9, 10, 8)
    assert row.prediction_error == pytest.approx(-1 / 9)
    assert (row.peak_gb, row.step_ms) == (130.0, 2500.0)
    assert (row.fail_outcome, row.fail_phase, row.fail_asked_gb) == ("cuda_oom", "backward", 2.0)


def test_what_is_not_known_stays_empty(study: Load, tmp_path: Path) -> None:
    matrix = study(BOTH)
    lay(tmp_path, found(largest_fit=None, smallest_fail=None, predicted=None, ended="deadline", probes=()), matrix)
    (row,) = frontier_rows(matrix, tmp_path)
    assert {getattr(row, name) for name in ("prediction_error", "peak_gb", "step_ms", "fail_outcome")} == {None}


def test_the_table_and_the_report_show_it(study: Load, tmp_path: Path) -> None:
    matrix = study(BOTH)
    lay(tmp_path, found(), matrix)
    write_frontier(matrix, tmp_path)
    head, line = (tmp_path / "frontier.csv").read_text().splitlines()
    assert head.startswith("platform,config,arm,over,largest_fit,smallest_fail,predicted")
    assert line.startswith("h200-x2,zero-3,matched,micro_batch,9,10,8,")
    report = write_report(matrix, tmp_path).read_text()
    assert (
        "| h200-x2 | zero-3 | matched | micro_batch | 9 | 10 | 8 | 130.00 | 2500.0 | found: cuda_oom in backward |"
        in report
    )


@pytest.mark.parametrize(
    "edit",
    ["data: {sequence_length: 4096}\n", "model: {activation_checkpointing: true}\n", "environment: {X: y}\n"],
)
def test_another_specs_frontier_counts_as_missing(
    study: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str], edit: str
) -> None:
    lay(tmp_path, found(), study(BOTH))
    assert f"{PLACE}/{FILE}" not in capsys.readouterr().out
    edited = study(BOTH + edit)
    (row,) = frontier_rows(edited, tmp_path)
    numbers = {"largest_fit", "smallest_fail", "predicted", "prediction_error", "peak_gb", "step_ms", "fail_outcome"}
    assert {getattr(row, name) for name in numbers} == {None}
    text = write_report(edited, tmp_path).read_text()
    told = "outdated; delete its frontier.json and ask for the target frontier again"
    assert f"| h200-x2 | zero-3 | matched | micro_batch | - | - | - | - | - | {told} |" in text
    assert f"{PLACE}/{FILE}: of another spec than the study's; delete its" in capsys.readouterr().out
    write_frontier(edited, tmp_path)
    assert f",{told}," in (tmp_path / "frontier.csv").read_text()
    assert f"{PLACE}/{FILE}: " in capsys.readouterr().out


def test_edits_outside_the_spec_keep_the_frontier(study: Load, tmp_path: Path) -> None:
    lay(tmp_path, found(), study(BOTH))
    (row,) = frontier_rows(study(BOTH + "title: Another\ndescription: words\n"), tmp_path)
    assert row.largest_fit == 9


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("{", "[", "not JSON"),
        ('"largest_fit": 9', '"largest_fit": "9"', "largest_fit: found '9'"),
        ('"ladder": [9, 10]', '"ladder": [10, 9]', "expected rising sizes"),
        ('"ladder": [9, 10]', '"ladder": []', "of another spec"),
    ],
)
def test_an_unreadable_frontier_keeps_the_report(
    study: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, reason: str
) -> None:
    matrix = study(BOTH)
    path = lay(tmp_path, found(), matrix)
    path.write_text(path.read_text().replace(old, new, 1))
    assert "; delete its frontier.json and ask" in write_report(matrix, tmp_path).read_text()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{PLACE}/{FILE}: ")
    assert reason in line


def test_a_study_without_one_says_how_to_ask(study: Load, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="asks for no frontier; add"):
        write_frontier(study(STUDY), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frontier: {over: batch}", r"frontier\[0\]\.over: found 'batch'; .*did you mean 'micro_batch'"),
        ("frontier: {limit: 0}", r"frontier\[0\]\.limit: found 0, expected 1 or more"),
        ("frontier: {over: sequence_length, limit: 100}", r"expected at least the resolution, 256"),
        ("frontier: {config: zero-4}", r"frontier\[0\]\.config: 'zero-4' is not in this study.*'zero-3'"),
        ("tuned: {zera: [{}]}", r"tuned\.zera: neither a config of this study nor an engine.*'zero'"),
        ("tuned: {zero: []}", r"tuned\.zero: found no trial"),
    ],
)
def test_a_wrong_request_is_refused_with_its_key(study: Load, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        study(STUDY + text + "\n")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_has_six_default_trials(name: str) -> None:
    engine = ENGINES[CONFIGS[name].engine]
    settings = resolve_settings(engine.name, CONFIGS[name].settings)
    trials = engine.trials(parse_settings(engine.name, settings))
    resolved = [json.dumps(resolve_settings(engine.name, settings | trial)) for trial in trials]
    assert len(trials) == 6
    assert len(set(resolved)) == (3 if settings.get("stage") == 0 else 6), "stage 0 has less to set"
    assert trials[0] == {}


def test_a_studys_trials_win_over_defaults(study: Load) -> None:
    text = (
        "platforms: [h200-x2]\nconfigs: [zero-2, zero-3, fsdp2-reshard]\narms: [tuned]\nrepeats: 1\ntuned:\n"
        "  zero: [{}, {overlap_comm: false}]\n  zero-3: [{}, {leaf_blocks: true}]\n  fsdp2: [{}, {compile: true}]\n"
    )
    matrix = study(text)
    trials = {run.identity.config: run.protocol.trials for run in matrix.runs}
    assert trials["zero-2"] == ({}, {"overlap_comm": False})
    assert trials["zero-3"] == ({}, {"leaf_blocks": True})
    assert trials["fsdp2-reshard"] == ({}, {"compile": True})


def test_the_report_shows_trials_and_the_choice(study: Load, tmp_path: Path) -> None:
    matrix = study(
        "platforms: [h200-x2]\nconfigs: [fsdp2-reshard]\narms: [tuned]\nrepeats: 2\n"
        "tuned: {fsdp2: [{}, {compile: true}]}\n"
    )
    for repeat, speed in ((1, 900.0), (2, 1100.0)):
        record = make_record(run_of(matrix, "fsdp2-reshard", repeat, arm="tuned"))
        assert record.measured is not None
        search = [
            Trial(settings={}, outcome="ok", tokens_per_s=speed, kept=True),
            Trial(settings={"compile": True}, outcome="jit_build", tokens_per_s=None, kept=False),
        ]
        measured = structs.replace(record.measured, search=search)
        write_record(tmp_path, structs.replace(record, measured=measured))
    kept, died = build(matrix, tmp_path).trials
    assert (kept.settings, kept.tokens_per_s, kept.kept, kept.runs) == ("as given", 1000.0, 2, 2)
    assert (died.settings, died.tokens_per_s, died.kept) == ("compile=true", None, 0)
    text = write_report(matrix, tmp_path).read_text()
    assert "| fsdp2-reshard | compile=true | - | 0/2 | jit_build |" in text
