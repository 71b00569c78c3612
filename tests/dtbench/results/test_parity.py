"""The parity check at aggregation: losses against the study's reference."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import write_report
from dtbench.results.cells import collect
from dtbench.results.numbers import tokens_per_s
from dtbench.results.runs import compare, load_runs
from dtbench.study.matrix import Matrix
from dtbench.workflow import Plan, parse_rerun

from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]
REFERENCE = (8.0, 7.5, 7.0)
SKEWED = GPU_STUDY + "data: {tokens: skewed}\n"
"""A study as those of 2026: judged by each loss."""


def test_the_largest_relative_difference_and_its_step() -> None:
    parity = compare([8.0, 7.5, 7.7, 1.0], [8.0, 7.5, 7.0, 7.0], steps=3, tolerance=0.02)
    assert parity is not None
    assert (parity.difference, parity.step, parity.steps) == (pytest.approx(0.1), 2, 3)
    assert not parity.within


def test_a_non_finite_loss_is_never_within() -> None:
    parity = compare([8.0, math.nan], [8.0, 7.5], steps=5, tolerance=1e9)
    assert parity is not None
    assert not parity.within


def test_nothing_to_compare() -> None:
    assert compare([], [8.0], steps=5, tolerance=0.1) is None
    assert compare([8.0], [8.0], steps=0, tolerance=0.1) is None


def results_with(matrix: Matrix, folder: Path, arm: str, loss: tuple[float, ...]) -> dict[str, str]:
    for run in matrix.runs:
        mine = run.identity.config == "zero-3" and run.identity.arm == arm
        write_record(folder, make_record(run, loss=loss if mine else REFERENCE))
    cells = collect(load_runs(matrix, folder))
    return {f"{config}/{arm}": cell.outcome for (_, config, arm), cell in cells.items()}


def test_a_mismatched_cell_gets_no_speed(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    outcomes = results_with(matrix, tmp_path, "matched", (8.0, 7.9, 7.9))
    assert outcomes == {"ddp/matched": "ok", "fsdp2-reshard/matched": "ok", "zero-3/matched": "parity_mismatch"}
    cell = collect(load_runs(matrix, tmp_path))["h200-x2", "zero-3", "matched"]
    assert cell.summary(tokens_per_s) is None


def test_a_mismatch_names_step_and_losses(tmp_path: Path, study: Load) -> None:
    matrix = study(SKEWED)
    results_with(matrix, tmp_path, "matched", (8.0, 7.9, 7.9))
    text = write_report(matrix, tmp_path).read_text()
    assert (
        "| 0/3 | parity_mismatch: The loss of step 2 is 7.9, the reference's is 7: 12.86% apart, "
        "at most 2.00% allowed in the first 3 steps. |"
    ) in text
    assert "Every rank delivered" not in text


def test_a_mismatch_beside_good_repeats_is_reported(tmp_path: Path, study: Load) -> None:
    matrix = study(SKEWED)
    for run in matrix.runs:
        off = (run.identity.config, run.identity.repeat) == ("zero-3", 2)
        write_record(tmp_path, make_record(run, loss=(math.inf, 7.5) if off else REFERENCE))
    text = write_report(matrix, tmp_path).read_text()
    assert "| 2/3 | ok, 1x parity_mismatch: The loss of step 0 is inf, the reference's is 8: not to be compared" in text


def test_structured_data_is_judged_by_the_fall(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    results_with(matrix, tmp_path, "matched", (8.0, 7.9, 7.9))
    text = write_report(matrix, tmp_path).read_text()
    assert (
        "parity_mismatch: mean fall of the loss from step 0 to steps 1 to 2: promised 0.75 within 5%, found 0.1" in text
    )


@pytest.mark.parametrize("word", ["failed", "parity_mismatch"])
def test_rerun_selects_mismatches_found_by_the_report(tmp_path: Path, study: Load, word: str) -> None:
    matrix = study(GPU_STUDY)
    results_with(matrix, tmp_path, "matched", (8.0, 7.9, 7.9))
    attempts = {
        (spec.identity.config, spec.identity.attempt)
        for spec in Plan.of(matrix, tmp_path, parse_rerun(word)).specs.values()
    }
    assert attempts == {("ddp", 1), ("fsdp2-reshard", 1), ("zero-3", 2)}


def test_in_the_defaults_arm_the_difference_is_data(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[matched]", "[defaults, matched]"))
    outcomes = results_with(matrix, tmp_path, "defaults", (8.0, 7.9, 7.9))
    assert set(outcomes.values()) == {"ok"}
    cell = collect(load_runs(matrix, tmp_path))["h200-x2", "zero-3", "defaults"]
    assert cell.parity_difference() == pytest.approx(0.9 / 7.0)


def test_a_non_finite_loss_is_never_fastest(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[matched]", "[defaults]"))
    for run in matrix.runs:
        broken = run.identity.config == "zero-3"
        loss = (8.0, math.nan, math.nan) if broken else REFERENCE
        write_record(tmp_path, make_record(run, loss=loss, tokens_per_s=9000.0 if broken else 1000.0))
    text = write_report(matrix, tmp_path).read_text()
    assert "| 0/3 | numerics: The loss of step 1 is not finite. |" in text
    assert "Failed: `zero-3` (numerics)." in text


def test_another_platforms_reference_serves_equal_ranks(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[h200-x2]", "[h200-x2, h200-x2-thin]"))
    write_record(tmp_path, make_record(run_of(matrix, "ddp", platform="h200-x2"), loss=REFERENCE))
    write_record(tmp_path, make_record(run_of(matrix, "zero-3", platform="h200-x2-thin"), loss=(8.0, 9.0)))
    cell = collect(load_runs(matrix, tmp_path))["h200-x2-thin", "zero-3", "matched"]
    assert cell.runs[0].outcome == "parity_mismatch"


def test_other_data_is_never_compared(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("zero-3]", "{name: big, base: zero-3, override: {data: {micro_batch: 8}}}]"))
    write_record(tmp_path, make_record(run_of(matrix, "ddp"), loss=REFERENCE))
    write_record(tmp_path, make_record(run_of(matrix, "big"), loss=(99.0,)))
    cell = collect(load_runs(matrix, tmp_path))["h200-x2", "big", "matched"]
    assert cell.parity_difference() is None
    assert cell.runs[0].outcome == "ok"
