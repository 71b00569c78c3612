"""The ratios that README and docs/performance.md quote are what the stored records say today."""

import statistics
from functools import cache
from pathlib import Path

import pytest
from dtbench.results.cells import CellResult, collect
from dtbench.results.comparison import Results
from dtbench.results.runs import load_runs
from dtbench.study.matrix import load_matrix

ROOT = Path(__file__).resolve().parents[2]
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
    ("h200-x2-2026", "h200-x2", "defaults", "fsdp2-reshard", "zero-3", 3, (README,)),
]


@pytest.mark.parametrize(("study", "platform", "arm", "fast", "slow", "machines", "pages"), QUOTED)
def test_quoted_speed_ratios_hold(
    study: str, platform: str, arm: str, fast: str, slow: str, machines: int, pages: tuple[str, ...]
) -> None:
    ratio = results(study).speed_ratio(cell(study, platform, fast, arm), cell(study, platform, slow, arm))
    assert ratio is not None
    assert ratio.machines == machines
    for page in pages:
        assert f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})" in page


def test_quoted_memory_ratio_holds() -> None:
    peaks = [cell("h200-x1-2026", "h200-x1", name, "matched").peak() for name in ("fsdp2-reshard-mb4", "zero-3-mb4")]
    assert f"{peaks[0] / peaks[1]:.2f}x" in README  # type: ignore[operator]


@pytest.mark.parametrize("config", ["fsdp2-reshard-mb6", "zero-3-mb6"])
def test_quoted_energy_holds(config: str) -> None:
    runs = cell("h200-x1-2026", "h200-x1", config, "matched").finished
    measured = [run.newest.record.measured for run in runs if run.newest]
    energies_j = [m.energy_j for m in measured if m and m.energy_j]
    assert len(energies_j) == 3
    assert f"{statistics.median(energies_j):,.0f} J" in PERFORMANCE


def test_quoted_gate_figures_hold() -> None:
    finished = [run for cell in results("gate-x1").cells.values() for run in cell.finished]
    measured = [run.newest.record.measured for run in finished if run.newest]
    losses = [m.loss for m in measured if m]
    norms = [m.grad_norm[0] for m in measured if m]
    assert len(losses) == 4
    assert {f"{loss[0]:.4f}" for loss in losses} == {"12.3343"}
    assert f"end 40 steps later at {min(x[-1] for x in losses):.2f} to {max(x[-1] for x in losses):.2f}" in PERFORMANCE
    assert f"gradient norm ({min(norms):.3f} to {max(norms):.3f})" in PERFORMANCE  # type: ignore[type-var]
