"""The fold of each run: what it shows, and how much of the page it takes."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.charts.run import outliers, steps
from dtbench.report.document import build, write_report
from dtbench.report.folds import MOST_FOLDS
from dtbench.study.matrix import Matrix
from msgspec import structs

from tests.dtbench.conftest import GPU_STUDY, ROOT, make_record, run_of, write_record

Load = Callable[[str], Matrix]


def test_slow_steps_are_marked_and_named() -> None:
    timed = [0.1] * 20 + [0.2] + [0.1] * 9
    assert outliers(timed) == [20]
    # Two warm-up steps come first.
    assert "<title>step 22: 200.0 ms</title>" in steps([0.5, 0.3], timed)


def test_scatter_alone_marks_no_step() -> None:
    assert outliers([0.100, 0.103, 0.098, 0.101, 0.104, 0.099]) == []


def test_a_dead_run_shows_its_log_lines(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), outcome="python_exception", evidence="KeyError: 7"))
    text = write_report(matrix, tmp_path).with_suffix(".html").read_text()
    _, _, runs = text.partition('<h2 id="runs">')
    assert "python_exception, high confidence, rank 1" in runs
    assert "rank-1.log:7</span> <code>KeyError: 7</code>" in runs


def test_settings_that_are_not_the_default_are_listed(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY + "data: {micro_batch: 3}\n")
    write_record(tmp_path, make_record(run_of(matrix, "zero-3")))
    (cell,) = build(matrix, tmp_path).runs
    assert dict(cell.settings)["data.micro_batch"] == "3"
    assert not any(key.startswith(("identity", "platform", "model.config")) for key, _ in cell.settings)


def test_router_balance_and_weights_are_told(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    record = make_record(run_of(matrix, "zero-3"))
    assert record.measured is not None
    loading = {"download_s": 0.0, "read_bytes": 6e9, "read_s": 2.5, "read_bytes_per_s": 2.4e9, "host_peak_bytes": 9e9}
    measured = structs.replace(
        record.measured,
        busiest_experts={"layers.0.mlp": 1.5, "layers.1.mlp": 3.25, "layers.2.mlp": 2.0},
        loading=loading,
    )
    write_record(tmp_path, structs.replace(record, measured=measured))
    plain, told = (dict(cell.runs[0].facts) for cell in build(matrix, tmp_path).runs)
    assert told["tokens of the busiest expert"] == "3.25x the mean of all in layers.1.mlp; median of 3 blocks 2.00x"
    assert told["weights read"] == "6.00 GB a rank at 2.40 GB/s"
    assert told["reading weights took"] == "2.5 s"
    assert told["download of weights took"] == "-"
    assert told["peak of host memory until the engine was built"] == "9.00 GB"
    assert "weights read" not in plain
    assert "tokens of the busiest expert" not in plain


def test_broken_telemetry_lines_are_left_out(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    path = write_record(tmp_path, make_record(run_of(matrix, "zero-3")))
    samples = [f'{{"at_s": {second}, "gpu": 0, "power_w": {100 + second}}}' for second in range(5)]
    path.with_name("telemetry.jsonl").write_text("\n".join([*samples[:3], "not JSON", *samples[3:], '{"at_s": 5, "g']))
    (cell,) = build(matrix, tmp_path).runs
    (power,) = [chart.svg for chart in cell.runs[0].charts if chart.caption.startswith("power")]
    (points,) = re.findall(r'points="([^"]*)" class="l s-matched', power)
    assert len(points.split()) == 5


def test_the_loss_stands_beside_the_references(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for run in matrix.runs:
        loss = (8.0, 7.9) if run.identity.reference else (8.0, 7.95)
        write_record(tmp_path, make_record(run, loss=loss))
    assert any(run.identity.reference for run in matrix.runs)
    captions = {chart.caption for cell in build(matrix, tmp_path).runs for run in cell.runs for chart in run.charts}
    assert {"loss", "loss; dim: the reference"} <= captions


def test_a_large_study_folds_some_runs_per_cell(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("repeats: 3", f"repeats: {MOST_FOLDS}"))
    for run in matrix.runs:
        failed = (run.identity.config, run.identity.repeat) == ("ddp", MOST_FOLDS)
        write_record(tmp_path, make_record(run, outcome="python_exception" if failed else "ok"))
    cells = build(matrix, tmp_path).runs
    assert [len(cell.runs) + cell.more for cell in cells] == [MOST_FOLDS] * 3
    assert sum(len(cell.runs) for cell in cells) <= MOST_FOLDS
    # A run that failed is among them.
    (ddp,) = [cell for cell in cells if cell.config == "ddp"]
    assert "python_exception" in [run.outcome for run in ddp.runs]


@pytest.mark.parametrize("name", ["h200-x1-2026", "h200-x2-2026"])
def test_150_runs_stay_below_1500_kb(name: str) -> None:
    text = (ROOT / "results" / name / "report.html").read_text(encoding="utf-8")
    head, _, rest = text.partition('<h2 id="runs">')
    runs, _, tail = rest.partition('<h2 id="provenance">')
    folds = runs.count("/record.json")
    assert folds > 40
    assert len(runs) / folds * 150 + len(head) + len(tail) < 1_500_000
