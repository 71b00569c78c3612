"""The decision that a report opens with, and its chart."""

from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.decisions import Pick
from dtbench.report.document import build, write_report
from dtbench.study.matrix import Matrix
from msgspec import structs

from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]


def test_the_first_table_holds_the_decision(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    speeds = {"ddp": 1000.0, "fsdp2-reshard": 800.0, "zero-3": 500.0}
    for run in matrix.runs:
        name = run.identity.config
        peak = 15_000_000_000 if name == "zero-3" else 20_000_000_000
        write_record(tmp_path, make_record(run, tokens_per_s=speeds[name], peak_bytes=peak))
    text = write_report(matrix, tmp_path).read_text()
    assert "| h200-x2, matched | fastest, cheapest per token | `ddp` | 1.25x `fsdp2-reshard` (1.25 to 1.25) |" in text
    # 2 GPUs, 1000 tok/s: a million tokens take 1000 s, 0.5556 GPU-hours.
    assert "| 1000 | 20.00 | 128.2 | 0.5556 GPU-h | - |" in text
    assert "| h200-x2, matched | lightest | `zero-3` | 0.50x `ddp` (0.50 to 0.50) |" in text
    assert "Not firm: all pairs come from one machine. No run is missing; set `repeats: 4`" in text


def test_an_open_decision_names_the_planning_command(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for config, found in (("ddp", 1000.0), ("zero-3", 500.0)):
        write_record(tmp_path, make_record(run_of(matrix, config), tokens_per_s=found))
    text = write_report(matrix, tmp_path).read_text()
    assert "Not firm: `fsdp2-reshard` has not run; the next one is compared by one pair of runs." in text
    assert "7 missing runs would settle more: `dtbench plan study.yaml`." in text


def test_only_unbeaten_configs_are_in_the_pareto_set(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for config, found, peak in (("ddp", 1000.0, 30), ("fsdp2-reshard", 800.0, 20), ("zero-3", 700.0, 25)):
        record = make_record(run_of(matrix, config), tokens_per_s=found, peak_bytes=peak * 10**9)
        write_record(tmp_path, record)
    (decision,) = build(matrix, tmp_path).decisions
    assert {p.config for p in decision.chart.points if p.pareto} == {"ddp", "fsdp2-reshard"}


def test_an_unfit_config_dies_at_the_capacity(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), outcome="cuda_oom"))
    (decision,) = build(matrix, tmp_path).decisions
    assert decision.chart.dead == (("zero-3", decision.chart.capacity_gb),)


def test_energy_per_token_needs_a_measurement(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for config, energy_j in (("ddp", 819.2), ("zero-3", None)):
        record = make_record(run_of(matrix, config))
        assert record.measured is not None
        measured = structs.replace(record.measured, energy_j=energy_j)
        write_record(tmp_path, structs.replace(record, measured=measured))
    picks = build(matrix, tmp_path).decisions[0].picks
    spec = run_of(matrix, "ddp")
    tokens = spec.protocol.timed_steps * spec.tokens_per_step
    assert [pick.joules_per_token for pick in picks] == [pytest.approx(819.2 / tokens)]


def _pairs(tmp_path: Path, matrix: Matrix, *ratios: float) -> Pick:
    """The fastest of two configs whose repeats differ by far more than the two of any pair."""
    for repeat, (ratio, host) in enumerate(zip(ratios, (1.0, 0.8, 0.9), strict=False), start=1):
        for config, speed in (("ddp", 1000.0), ("fsdp2-reshard", 1000.0 * ratio)):
            write_record(tmp_path, make_record(run_of(matrix, config, repeat), tokens_per_s=speed * host))
    return build(matrix, tmp_path).decisions[0].picks[0]


def test_pairs_decide_where_repeats_are_noisy(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    pick = _pairs(tmp_path, matrix, 0.97, 0.98)
    assert (pick.config, pick.ties) == ("ddp", ())
    assert "the next one is compared by 2 pairs of runs, one machine" in build(matrix, tmp_path).decisions[0].open
    assert "It is 3% faster than the next one, `fsdp2-reshard` (2% to 3% over 2 paired runs, one machine)." in (
        write_report(matrix, tmp_path).read_text()
    )


@pytest.mark.parametrize(
    ("ratios", "tie", "words"),
    [
        ((1.02,), "one pair of runs cannot tell", "Not told apart from it by fewer than 3 pairs of runs"),
        ((0.98, 1.03), "2 pairs of runs cannot tell", "Not told apart from it by fewer than 3 pairs of runs"),
        ((0.98, 1.03, 1.0), "a tie", "Equally fast within the noise of repeats"),
        ((1.001, 1.002, 1.003), "a tie", "Equally fast within the noise of repeats"),
    ],
)
def test_a_tie_needs_three_pairs(tmp_path: Path, study: Load, ratios: tuple[float, ...], tie: str, words: str) -> None:
    matrix = study(GPU_STUDY)
    if len(ratios) == 1:
        # Another config's repeats tell how noisy the platform is.
        for repeat, speed in enumerate((500.0, 450.0, 550.0), start=1):
            write_record(tmp_path, make_record(run_of(matrix, "zero-3", repeat), tokens_per_s=speed))
    pick = _pairs(tmp_path, matrix, *ratios)
    assert (pick.tie, len(pick.ties)) == (tie, 1)
    text = write_report(matrix, tmp_path).read_text()
    assert f"{words}: `{pick.ties[0]}`." in text
    assert f"or `{pick.ties[0]}` ({tie}) |" in text
