"""What to use when: the choices the records support, per platform and arm."""

from collections.abc import Collection
from typing import Any

from dtbench.report.sentences import apart
from dtbench.results.cells import CellResult, cell_cost
from dtbench.results.comparison import Results, speed
from dtbench.results.runs import MISSING
from dtbench.results.stats import Ratio
from dtbench.study.matrix import Matrix
from harness.contract.units import GB

PERCENT_BELOW = 1.5
"""A factor below this is told as a percentage."""


def choices(matrix: Matrix, results: Results) -> list[dict[str, Any]]:
    """For each platform, arm and workload: the fastest, what ties with it, the lightest, and what did not run.

    More sequences a step are another workload, not a faster config; in an arm of equal numerics so are other ones.
    """
    found = []
    for platform, arm in results.places():
        cells = [c for key, c in results.cells.items() if (key[0], key[2]) == (platform, arm) and c.cell.spec]
        workloads = list(dict.fromkeys(cell.cell.terms for cell in cells))
        for terms in workloads:
            telling = [part for part, *others in zip(terms, *workloads, strict=True) if len(set(others)) > 1]
            where = ", ".join([platform, arm, *telling])
            found.append(_choice(matrix, results, where, [cell for cell in cells if cell.cell.terms == terms]))
    known = [choice for choice in found if choice is not None]
    return known if any(choice["best"] for choice in known) else []


def _choice(matrix: Matrix, results: Results, where: str, cells: list[CellResult]) -> dict[str, Any] | None:
    alive = _ranked(results, [cell for cell in cells if cell.finished])
    failed = [(cell.key[1], cell.fate) for cell in cells if not cell.finished and cell.outcome != MISSING]
    unrun = [cell.key[1] for cell in cells if cell.outcome == MISSING]
    if not alive:
        nothing: dict[str, Any] = {"best": None, "ties": [], "unknown": [], "died": {}, "runner_up": None}
        return {"where": where, **nothing, "failed": failed, "unrun": unrun} if failed else None
    best = alive[0]
    platform, _, arm = best.key
    level = {cell.key[1]: r for cell in alive[1:] if (r := results.speed_ratio(cell, best)) is not None and r.tie}
    ties = [config for config, ratio in level.items() if not ratio.apart]
    weighed = sorted((peak, cell.key[1], cell) for cell in alive if (peak := cell.peak()))
    lightest = weighed[0] if weighed else None
    return {
        "where": where,
        "platform": platform,
        "arm": arm,
        "device": matrix.platforms[platform].device,
        "best": best.key[1],
        "tokens_per_s": speed(best),
        "peak_gb": _peak_gb(best),
        "remedied": best.dagger,
        "usd_per_mtoken": cell_cost(best, matrix.platforms[platform].price),
        "ties": ties,
        "unknown": [config for config, ratio in level.items() if ratio.apart],
        "died": {name: n for name, n in sorted(best.outcomes.items()) if name not in ("ok", MISSING)},
        "runner_up": _second(results, alive, level.keys()),
        "lightest": lightest[1] if lightest else None,
        "lightest_gb": lightest[0] / GB if lightest else None,
        "lightest_ratio": results.speed_ratio(best, lightest[2]) if lightest else None,
        "failed": failed,
        "unrun": unrun,
    }


def _ranked(results: Results, alive: list[CellResult]) -> list[CellResult]:
    """Fastest first by median; the first is beaten by none where they share a machine, which medians do not see."""
    alive = sorted(alive, key=speed, reverse=True)
    unbeaten = [cell for cell in alive if not any(_beats(results, other, cell) for other in alive)]
    best = (unbeaten or alive)[:1]
    return best + [cell for cell in alive if cell not in best]


def _beats(results: Results, a: CellResult, b: CellResult) -> bool:
    ratio = results.speed_ratio(a, b)
    return ratio is not None and ratio.value > 1 and not ratio.tie


def _second(results: Results, alive: list[CellResult], level: Collection[str]) -> dict[str, Any] | None:
    """The config that the fastest is least ahead of, by paired runs: medians may come from different machines."""
    behind = [
        (ratio.value, cell.key[1], ratio)
        for cell in alive[1:]
        if cell.key[1] not in level and (ratio := results.speed_ratio(alive[0], cell)) is not None
    ]
    if not behind:
        return None
    _, config, ratio = min(behind, key=lambda found: found[:2])
    return {
        "config": config,
        "lead_percent": ratio.change * 100,
        "low_percent": (ratio.low - 1) * 100,
        "high_percent": (ratio.high - 1) * 100,
        "pairs": ratio.n,
        "apart": ratio.apart,
    }


def _peak_gb(cell: CellResult) -> float | None:
    peak = cell.peak()
    return None if peak is None else peak / GB


def _slower(ratio: Ratio | None, best: str) -> str:
    """How far the lightest config is behind the fastest, by their paired runs."""
    if ratio is None:
        return ""
    if ratio.tie:
        return f", {'speed not to be told apart from' if ratio.apart else 'as fast as'} {best}{apart(ratio)}"
    slower = f"{ratio.value:.1f}x" if ratio.value >= PERCENT_BELOW else f"{ratio.change * 100:.0f}%"
    return f", {slower} slower than {best}{apart(ratio)}"


def recommendations(chosen: list[dict[str, Any]]) -> list[str]:
    """The choices as advice, one sentence each."""
    lines = []
    for c in chosen:
        where = c["where"]
        if c["best"] is None:
            continue
        if c["device"] != "cuda":
            lines.append(f"{where}: CPU speeds do not carry over to GPUs; use this study to check that engines agree.")
            continue
        lines.append(f"{where}: when it fits, {' or '.join([c['best'], *c['ties']])}.")
        if c["lightest"] and c["lightest"] != c["best"]:
            slower = _slower(c["lightest_ratio"], c["best"])
            lines.append(f"{where}: when memory is short, {c['lightest']}: {c['lightest_gb']:.2f} GB{slower}.")
    return lines
