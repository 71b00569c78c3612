"""What belongs to the host is told apart from what belongs to the engine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import build, write_report
from dtbench.report.sentences import support
from dtbench.results.stats import Ratio
from dtbench.study.matrix import Matrix

from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]


def lay(place: Path, matrix: Matrix, gaps: dict[str, float]) -> None:
    """ddp at 1000 tok/s, fsdp2-reshard at 800 and zero-3 at 400, whose steps exceed GPU-busy time by these shares."""
    speeds = {"ddp": 1000.0, "fsdp2-reshard": 800.0, "zero-3": 400.0}
    for run in matrix.runs:
        config = run.identity.config
        busy_s = run.tokens_per_step / speeds[config] / (1 + gaps[config])
        write_record(place, make_record(run, tokens_per_s=speeds[config], gpu_busy_s=busy_s))


def test_a_host_bound_cell_is_flagged_and_explained(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    lay(tmp_path, matrix, {"ddp": 0.03, "fsdp2-reshard": 0.04, "zero-3": 0.5})
    text = write_report(matrix, tmp_path).read_text()
    assert text.count("[host_bound] |") == 1
    assert "[host_bound]: steps take longer than the GPU is busy, by more than noise" in text
    # 800 against 400 tok/s; GPU-busy times of 1/800/1.04 against 1/400/1.5.
    assert "(2.00 to 2.00 over 3 paired runs, one machine; the slower one is host-bound: 1.39 by GPU-busy time)" in text


def test_no_ranking_rests_on_hosts_alone(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("ddp, ", ""))
    lay(tmp_path, matrix, {"fsdp2-reshard": 0.1, "zero-3": 2.0})
    (choice,) = build(matrix, tmp_path).choices
    assert choice.best is None, "by GPU-busy time zero-3 would be ahead"
    assert "both wait for the host" in choice.sentence
    lay(tmp_path, matrix, {"fsdp2-reshard": 0.1, "zero-3": 1.0})
    (choice,) = build(matrix, tmp_path).choices
    assert choice.best == "fsdp2-reshard", "GPU-busy times give the same order"


@pytest.mark.parametrize(
    ("who", "gpu", "words"),
    [
        (None, 1.4, "(1.90 to 2.10 over 3 paired runs, one machine)"),
        ("faster", 3.0, "; the faster one is host-bound: at least this on a faster host)"),
        ("slower", 1.4, "; the slower one is host-bound: 1.40 by GPU-busy time)"),
        ("slower", 0.9, "; the slower one is host-bound, so a faster host may change it)"),
        ("both", None, "; both are host-bound, so a faster host may change it)"),
    ],
)
def test_a_lead_says_what_hosts_may_change(who: str | None, gpu: float | None, words: str) -> None:
    ratio = Ratio(2.0, 1.9, 2.1, 3, tie=False, machines=1, host_bound=who, gpu=gpu)
    assert support(ratio).endswith(words)


def test_an_inverse_keeps_who_waits() -> None:
    ratio = Ratio(2.0, 1.9, 2.5, 3, tie=False, machines=1, host_bound="slower", gpu=1.6)
    assert ratio.inverse == Ratio(0.5, 0.4, 1 / 1.9, 3, tie=False, machines=1, host_bound="slower", gpu=0.625)


def test_energy_and_gpu_hours_stand_in_the_table(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    run = run_of(matrix, "ddp")
    tokens = run.tokens_per_step * run.protocol.timed_steps
    write_record(tmp_path, make_record(run, tokens_per_s=1000.0, energy_j=1.4 * tokens))
    row = next(r for r in build(matrix, tmp_path).platforms[0].tables[0].rows if r.config == "ddp")
    assert row.joules_per_token == pytest.approx(1.4)
    assert row.watts == pytest.approx(1.4 * 1000 / 2), "of one of two GPUs"
    assert row.gpu_hours_per_mtoken == pytest.approx(2 * 1000 / 3600)
    assert "| J/token | W/GPU |" in write_report(matrix, tmp_path).read_text()
