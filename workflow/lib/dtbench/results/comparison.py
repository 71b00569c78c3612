"""All cells of a study, with the look-ups and comparisons that findings and tables share.

`beside` makes the same comparisons on this study's platforms and on another study's: which finding holds where.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from dtbench.results.cells import CellResult
from dtbench.results.numbers import Value, gpu_tokens_per_s, host_gap, tokens_per_s
from dtbench.results.machines import pair, spread
from dtbench.results.stats import ENOUGH_MACHINES, SAME, Ratio, noise_floor, paired_ratio
from harness.contract.engines import CONFIGS, pairs_apart_by
from harness.contract.engines.descriptor import Config
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from dtbench.results.cells import collect
from dtbench.results.runs import load_runs
from dtbench.study.matrix import Matrix, load_matrix

Pairs = tuple[tuple[str, str], ...]
"""Names of configs to compare, two by two."""


def _names(pairs: Iterable[tuple[Config, Config]]) -> Pairs:
    return tuple((first.name, second.name) for first, second in pairs)


SAME_SHARDING = _names(pair for pair in pairs_apart_by("engine") if pair[0].shards != "nothing")
"""The same sharding by two engines."""
ON_DEVICE = tuple(pair for pair in SAME_SHARDING if not CONFIGS[pair[0]].offloads)
"""The same without what lives in host memory."""
PARAMETERS_TOO = _names(
    pair for pair in pairs_apart_by("shards") if [c.shards for c in pair] == ["parameters", "gradients"]
)
"""A config that also shards the parameters, and the config of the same engine that shards everything else."""
RESHARDING = _names((free, keep) for keep, free in pairs_apart_by("keeps_gathered"))
"""A config that frees its gathered parameters after forward, and the one that keeps them."""
OFFLOADING = _names((here, away) for away, here in pairs_apart_by("offloads"))
"""A config on the device, and the same one with its state in host memory."""
BASELINES = tuple(config.name for config in CONFIGS.values() if config.baseline)
"""Plain data parallelism."""

LAUNCH_GAPS = 0.05
"""Share of a step in which a GPU that is never short of work still pauses between kernels: 2 to 5% at micro-batch 4 and
above."""


@dataclass(frozen=True)
class Results:
    """All cells of a study, with the look-ups that findings need."""

    cells: dict[tuple[str, str, str], CellResult]
    platforms: tuple[str, ...]
    arms: tuple[str, ...]

    def get(self, platform: str, config: str, arm: str) -> CellResult | None:
        """A cell that has numbers; None otherwise."""
        cell = self.cells.get((platform, config, arm))
        return cell if cell is not None and cell.finished else None

    def pairs(self, first: str, second: str) -> list[tuple[str, str]]:
        """The two configs, and every two variants of them that carry the same suffix: `zero-3-mb4` of `zero-3`."""
        bases = {cell.cell.config: cell.cell.base for cell in self.cells.values()}
        suffixes = [
            name.removeprefix(first) for name, base in bases.items() if base == first and name.startswith(first)
        ]
        return [(first + s, second + s) for s in suffixes if bases.get(second + s) == second]

    def places(self) -> Iterable[tuple[str, str]]:
        """Every (platform, arm)."""
        return [(platform, arm) for arm in self.arms for platform in self.platforms]

    def configs(self) -> list[str]:
        """Every config, in table order."""
        return list(dict.fromkeys(config for _, config, _ in self.cells))

    def floor(self, platform: str) -> float:
        """The platform's noise floor: what repeats of one cell differ by."""
        return self._floors[platform]

    @cached_property
    def _floors(self) -> dict[str, float]:
        names = dict.fromkeys(name for name, _, _ in self.cells)
        spreads = {key: cell.summary(tokens_per_s) for key, cell in self.cells.items()}
        return {name: noise_floor(s for key, s in spreads.items() if key[0] == name) for name in names}

    def machine_spread(self, *platforms: str) -> float | None:
        """The most that one cell of these platforms differed between machines, its best over its worst minus 1."""
        found = [s for key, s in self._spreads.items() if key[0] in platforms]
        return max(found, default=None)

    @cached_property
    def _spreads(self) -> dict[tuple[str, str, str], float]:
        spreads = {key: spread(cell.samples(tokens_per_s)) for key, cell in self.cells.items()}
        return {key: s for key, s in spreads.items() if s is not None}

    def difference(self, a: CellResult, b: CellResult, value: Value) -> float | None:
        """A number of one cell minus that of another, over the pairs of `speed_ratio`; None if one has no number."""
        pairs = pair(a.samples(value), b.samples(value))
        shared = [key for key in pairs.numerator if key in pairs.denominator]
        if shared:
            return statistics.median(pairs.numerator[key] - pairs.denominator[key] for key in shared)
        above, below = a.median(value), b.median(value)
        return None if above is None or below is None else above - below

    def speed_ratio(self, a: CellResult | None, b: CellResult | None) -> Ratio | None:
        """Speed of one cell over another, paired on the machines they share, else by repeat.

        None where the two do not train the same: other tokens a step, or in an arm of equal numerics other numerics.
        The pairs' own range decides whether the two differ: a pair cancels what repeats of one cell differ by. Too few
        pairs have no range. Then a difference no larger than that of repeats is a tie, and without a shared machine one
        no larger than what machines alone have made to one cell.
        """
        if a is None or b is None or not comparable(a, b):
            return None
        pairs = pair(a.samples(tokens_per_s), b.samples(tokens_per_s))
        floor = SAME
        if len(pairs.numerator.keys() & pairs.denominator.keys()) < (ENOUGH_MACHINES if pairs.apart else 2):
            floor = max(self.floor(a.key[0]), self.floor(b.key[0]))
            # The same hosts serve all platforms, so their difference on any platform counts.
            floor = max(floor, (self.machine_spread(*self.platforms) or 0.0) if pairs.apart else 0.0)
        ratio = paired_ratio(pairs.numerator, pairs.denominator, floor, apart=pairs.apart, machines=pairs.machines)
        return None if ratio is None else self._with_hosts(ratio, a, b)

    def host_bound(self, cell: CellResult) -> bool:
        """Whether a step is longer than its GPU-busy time by more than launch gaps and noise explain, at the median."""
        gap = cell.median(host_gap)
        return gap is not None and gap > LAUNCH_GAPS + self.floor(cell.key[0])

    def _with_hosts(self, ratio: Ratio, a: CellResult, b: CellResult) -> Ratio:
        names = ("faster", "slower") if ratio.value >= 1 else ("slower", "faster")
        waiting = [name for name, cell in zip(names, (a, b), strict=True) if self.host_bound(cell)]
        found = "both" if len(waiting) > 1 else next(iter(waiting), None)
        # GPUs of one type differ by 2% too, so this ratio comes from the same pairs.
        pairs = pair(a.samples(gpu_tokens_per_s), b.samples(gpu_tokens_per_s))
        gpu = paired_ratio(pairs.numerator, pairs.denominator, 0.0)
        return replace(ratio, host_bound=found, gpu=gpu.value if gpu else None)


def comparable(a: CellResult, b: CellResult) -> bool:
    """Whether a difference between the two says something about engines or platforms."""
    return a.cell.terms == b.cell.terms


def speed(cell: CellResult) -> float:
    """Median tokens per second of a cell with numbers."""
    return cell.median(tokens_per_s) or 0.0


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
