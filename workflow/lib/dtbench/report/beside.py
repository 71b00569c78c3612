"""The same comparisons on this study's platforms and on another study's: which finding holds where."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from dtbench.results.cells import collect
from dtbench.results.comparison import OFFLOADING, ON_DEVICE, PARAMETERS_TOO, RESHARDING, Results, comparable
from dtbench.results.runs import load_runs
from dtbench.study.matrix import Matrix, load_matrix


class Shown(NamedTuple):
    """One value of the table."""

    ratio: float
    apart: bool
    """The runs come from different machines."""


class Column(NamedTuple):
    """One study, platform and arm."""

    study: str
    platform: str
    arm: str
    terms: tuple[str, ...]
    """What its cells train on."""
    telling: tuple[str, ...] = ()
    """The terms in which columns differ."""


class Row(NamedTuple):
    """One comparison over all columns."""

    title: str
    ratios: list[Shown | None]


class Beside(NamedTuple):
    """The table; both parts are empty when the study names no other."""

    columns: list[Column]
    rows: list[Row]


Compare = Callable[[Results, str, str, str, str], Shown | None]


def _speed(results: Results, platform: str, arm: str, first: str, second: str) -> Shown | None:
    ratio = results.speed_ratio(results.get(platform, first, arm), results.get(platform, second, arm))
    return None if ratio is None else Shown(ratio.value, ratio.apart)


def _peak(results: Results, platform: str, arm: str, first: str, second: str) -> Shown | None:
    one, other = results.get(platform, first, arm), results.get(platform, second, arm)
    if one is None or other is None or not comparable(one, other):
        return None
    peaks = one.peak(), other.peak()
    return Shown(peaks[0] / peaks[1], apart=False) if peaks[0] and peaks[1] else None


def _comparisons() -> tuple[tuple[str, Compare, str, str], ...]:
    """Name, what is divided, its two configs."""
    wider = [(keep, free) for free, keep in RESHARDING]
    asked = [(f"{{}} of `{a}` over `{b}`", a, b, True) for a, b in ON_DEVICE]
    asked += [(f"{{}} of `{a}` over `{b}`", a, b, False) for a, b in ((less, more) for more, less in PARAMETERS_TOO)]
    asked += [(f"{{}} of `{a}` over `{b}`", a, b, True) for a, b in wider]
    asked += [(f"{{}} of `{a}` over its offload", a, b, False) for a, b in OFFLOADING]
    return tuple(
        (title.format(name), compare, a, b)
        for title, a, b, memory_too in asked
        for name, compare in (("speed", _speed), ("peak memory", _peak))[: 1 + memory_too]
    )


COMPARISONS = _comparisons()


def beside(matrix: Matrix, results: Results, results_folder: Path) -> Beside:
    """One column per study, platform and arm that has any of the ratios.

    The other study's records are expected beside this one's; where they are missing, it has no column.
    """
    if not matrix.study.beside:
        return Beside([], [])
    found = list(_columns(matrix.study.name, results))
    for name in matrix.study.beside:
        other = load_matrix(name, matrix.root)
        cells = collect(load_runs(other, results_folder.parent / other.study.name))
        found += _columns(other.study.name, Results(cells, other.study.platforms, other.study.arms))
    rows = [Row(title, [ratios[index] for _, ratios in found]) for index, (title, *_) in enumerate(COMPARISONS)]
    # Terms that all columns share need no words.
    telling = [len(set(terms)) > 1 for terms in zip(*(column.terms for column, _ in found), strict=True)]
    columns = [column._replace(telling=tuple(itertools.compress(column.terms, telling))) for column, _ in found]
    return Beside(columns, [row for row in rows if any(row.ratios)])


def _terms(results: Results, platform: str, arm: str) -> tuple[str, ...]:
    """What most of the compared cells of one place train on."""
    names = {name for _, _, *pair in COMPARISONS for name in pair}
    found = [cell.cell.terms for name in names if (cell := results.get(platform, name, arm)) is not None]
    return max(sorted(found), key=found.count)[:4]


def _columns(study: str, results: Results) -> Iterable[tuple[Column, list[Shown | None]]]:
    for platform in results.platforms:
        for arm in results.arms:
            ratios = [compare(results, platform, arm, first, second) for _, compare, first, second in COMPARISONS]
            if any(ratios):
                yield Column(study, platform, arm, _terms(results, platform, arm)), ratios
