"""The ratios that README and docs/performance.md quote are what the stored records say today."""

import statistics
from functools import cache
from pathlib import Path

import pytest
from dtbench.results.cells import CellResult, collect
from dtbench.results.comparison import Results
from dtbench.results.machines import pair
from dtbench.results.numbers import joules_per_token
from dtbench.results.runs import load_runs
from dtbench.study.matrix import load_matrix

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


@cache
def results(study: str) -> Results:
    matrix = load_matrix(study, ROOT)
    cells = collect(load_runs(matrix, ROOT / "results" / study))
    return Results(cells, matrix.study.platforms, matrix.study.arms)


def cell(study: str, platform: str, config: str, arm: str) -> CellResult:
    found = results(study).get(platform, config, arm)
    assert found is not None
    return found


QUOTED = [
    ("h200-x1-2026", "h200-x1", "matched", "fsdp2-reshard-mb6", "zero-3-mb6", 2, (README, PERFORMANCE)),
    ("h200-x1-2026", "h200-x1", "matched", "fsdp2-reshard-mb4", "zero-3-mb4", 3, (README, PERFORMANCE)),
    ("h200-x1-2026", "h200-x1", "matched", "fsdp2-reshard", "zero-3", 1, (PERFORMANCE,)),
    ("h200-x1-2026", "h200-x1", "matched", "ddp-mb4", "fsdp2-reshard-mb4", 2, (PERFORMANCE,)),
    ("h200-x1-2026", "h200-x1", "matched", "ddp-mb6", "fsdp2-reshard-mb6", 1, (PERFORMANCE,)),
    ("h200-x1-2026", "h200-x1", "matched", "fsdp2-reshard-mb4", "zero-2-mb4", 1, (PERFORMANCE,)),
    ("h200-x1-2026", "h200-x1", "matched", "fsdp2-reshard-mb6", "zero-2-mb6", 1, (PERFORMANCE,)),
    ("h200-x2-2026", "h200-x2", "defaults", "fsdp2-reshard", "zero-3", 3, (README,)),
]


@pytest.mark.parametrize(("study", "platform", "arm", "fast", "slow", "machines", "pages"), QUOTED)
def test_quoted_ratios_stand_beside_gpu_busy_time(
    study: str, platform: str, arm: str, fast: str, slow: str, machines: int, pages: tuple[str, ...]
) -> None:
    ratio = results(study).speed_ratio(cell(study, platform, fast, arm), cell(study, platform, slow, arm))
    assert ratio is not None
    assert ratio.machines == machines
    beside = "not measured" if ratio.gpu is None else f"{ratio.gpu:.2f}x"
    for page in pages:
        assert f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f}) | {beside} |" in page


def test_quoted_memory_ratio_holds() -> None:
    peaks = [cell("h200-x1-2026", "h200-x1", name, "matched").peak() for name in ("fsdp2-reshard-mb4", "zero-3-mb4")]
    assert f"{peaks[0] / peaks[1]:.2f}x" in README  # type: ignore[operator]


def test_quoted_energies_come_from_pairs() -> None:
    fast, slow = (cell("h200-x1-2026", "h200-x1", c, "matched") for c in ("fsdp2-reshard-mb6", "zero-3-mb6"))
    pairs = pair(fast.samples(joules_per_token), slow.samples(joules_per_token))
    both = [key for key in pairs.numerator if key in pairs.denominator]
    assert len(both) == 3
    for side in (pairs.numerator, pairs.denominator):
        joules = statistics.median(side[key] for key in both)
        assert f"{joules * 368_640:,.0f} J" in PERFORMANCE
        assert f"{joules * 1000:.1f}" in PERFORMANCE


def test_quoted_gate_figures_hold() -> None:
    finished = [run for cell in results("gate-x1").cells.values() for run in cell.finished]
    measured = [run.newest.record.measured for run in finished if run.newest]
    losses = [m.loss for m in measured if m]
    norms = [m.grad_norm[0] for m in measured if m]
    assert len(losses) == 4
    assert {f"{loss[0]:.4f}" for loss in losses} == {"12.3343"}
    assert f"end 40 steps later at {min(x[-1] for x in losses):.2f} to {max(x[-1] for x in losses):.2f}" in PERFORMANCE
    assert f"gradient norm ({min(norms):.3f} to {max(norms):.3f})" in PERFORMANCE  # type: ignore[type-var]
