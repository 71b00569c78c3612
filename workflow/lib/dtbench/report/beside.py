"""The same comparisons on this study's platforms and on another study's: which finding holds where."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dtbench.results.cells import collect
from dtbench.results.comparison import OFFLOADING, ON_DEVICE, PARAMETERS_TOO, RESHARDING, Results, comparable
from dtbench.results.runs import load_runs
from dtbench.study.matrix import Matrix, load_matrix

Shown = dict[str, Any]
"""`ratio`, and whether it is `apart`: of runs on different machines."""
Compare = Callable[[Results, str, str, str, str], Shown | None]


def _speed(results: Results, platform: str, arm: str, first: str, second: str) -> Shown | None:
    ratio = results.speed_ratio(results.get(platform, first, arm), results.get(platform, second, arm))
    return None if ratio is None else {"ratio": ratio.value, "apart": ratio.apart}


def _peak(results: Results, platform: str, arm: str, first: str, second: str) -> Shown | None:
    one, other = results.get(platform, first, arm), results.get(platform, second, arm)
    if one is None or other is None or not comparable(one, other):
        return None
    peaks = one.peak(), other.peak()
    return {"ratio": peaks[0] / peaks[1], "apart": False} if peaks[0] and peaks[1] else None


def _comparisons() -> tuple[tuple[str, Compare, str, str], ...]:
    """Name, what is divided, its two configs."""
    wider = [(keep, free) for free, keep in RESHARDING]
    asked = [(f"{{}} of {a} over {b}", a, b, True) for a, b in ON_DEVICE]
    asked += [(f"{{}} of {a} over {b}", a, b, False) for a, b in ((less, more) for more, less in PARAMETERS_TOO)]
    asked += [(f"{{}} of {a} over {b}", a, b, True) for a, b in wider]
    asked += [(f"{{}} of {a} over its offload", a, b, False) for a, b in OFFLOADING]
    return tuple(
        (title.format(name), compare, a, b)
        for title, a, b, memory_too in asked
        for name, compare in (("speed", _speed), ("peak memory", _peak))[: 1 + memory_too]
    )


COMPARISONS = _comparisons()


def beside(matrix: Matrix, results: Results, results_folder: Path) -> dict[str, Any]:
    """`columns`, one per study, platform and arm that has any of the ratios, and `rows` of ratios; both may be empty.

    Another study's records are looked for beside this one's, and where they are missing it has no column.
    """
    if not matrix.study.beside:
        return {"columns": [], "rows": []}
    columns = list(_columns(matrix.study.name, results))
    for name in matrix.study.beside:
        other = load_matrix(name, matrix.root)
        cells = collect(load_runs(other, results_folder.parent / other.study.name))
        columns += _columns(other.study.name, Results(cells, other.study.platforms, other.study.arms))
    rows = []
    for index, (title, *_) in enumerate(COMPARISONS):
        values = [ratios[index] for _, ratios in columns]
        if any(value is not None for value in values):
            rows.append({"title": title, "values": values})
    every = [where["terms"] for where, _ in columns]
    for where, _ in columns:
        # What all columns share needs no words.
        where["telling"] = [part for part, *all_of in zip(where["terms"], *every, strict=True) if len(set(all_of)) > 1]
    return {"columns": [where for where, _ in columns], "rows": rows}


def _terms(results: Results, platform: str, arm: str) -> tuple[str, ...]:
    """What the compared cells of one place train on: those of most of them."""
    names = {name for _, _, *pair in COMPARISONS for name in pair}
    found = [cell.cell.terms for name in names if (cell := results.get(platform, name, arm)) is not None]
    return max(sorted(found), key=found.count)[:4]


def _columns(study: str, results: Results) -> Iterable[tuple[dict[str, Any], list[Shown | None]]]:
    for platform in results.platforms:
        for arm in results.arms:
            ratios = [compare(results, platform, arm, first, second) for _, compare, first, second in COMPARISONS]
            if any(ratio is not None for ratio in ratios):
                yield (
                    {"study": study, "platform": platform, "arm": arm, "terms": _terms(results, platform, arm)},
                    ratios,
                )
