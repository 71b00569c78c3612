"""Statistics over runs. The run is the unit: steps of one run are autocorrelated and never pooled."""

import functools
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)

BOOTSTRAP_RUNS = 5
"""From this many runs on, a percentile bootstrap interval means something; below, the range is given."""
CONFIDENCE = 0.95
RESAMPLES = 2000
ENOUGH_MACHINES = 3
"""From this many pairs of runs on different machines on, their range shows what machines do to a ratio."""
FIRM_PAIRS = 3
"""With fewer pairs than this, a ratio is shown with their number, because it is not settled."""
SAME = 0.005
"""Cells whose speeds differ by no more than this count as equally fast, however precise the measurement: 1.00x in
tables."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Median over runs, and how far it can be trusted."""

    median: float
    low: float
    high: float
    n: int
    kind: str
    """`range` of the runs, or 95 % bootstrap `interval` of their median."""

    @property
    def spread(self) -> float:
        """Width of the range or interval over the median, the cell's own noise."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """One cell over another, paired by repeat."""

    value: float
    low: float
    high: float
    n: int
    """Pairs; 0: the cells share no repeat, and the medians were divided."""
    tie: bool
    """The difference is inside the noise floor or the interval holds 1."""
    apart: bool = False
    """No machine ran both cells: part of the value is how much faster one machine is than the other."""
    machines: int | None = None
    """Machines that ran pairs; None: unknown, or `apart`."""
    host_bound: str | None = None
    """Which of the two waits for the host: `faster`, `slower` or `both`; None: neither, as far as is known."""
    gpu: float | None = None
    """The same ratio by GPU-busy time, which no host changes; None: unknown."""

    @property
    def inverse(self) -> "Ratio":
        """The second cell over the first."""
        gpu = None if self.gpu is None else 1 / self.gpu
        return replace(self, value=1 / self.value, low=1 / self.high, high=1 / self.low, gpu=gpu)

    @property
    def firm(self) -> bool:
        """Whether it rests on enough pairs to call a tie one."""
        return self.n >= FIRM_PAIRS

    @property
    def ranks(self) -> bool:
        """Whether advice may rest on it: pairs of one machine, or enough pairs to show how much machines differ."""
        return self.n >= (ENOUGH_MACHINES if self.apart else 1) and not self.only_of_the_host

    @property
    def only_of_the_host(self) -> bool:
        """Both wait for the host, and their GPU-busy times do not give the same order."""
        return self.host_bound == "both" and not (self.gpu is not None and (self.gpu > 1) == (self.value > 1))

    def over(self, other: "Ratio", floor: float) -> "Ratio":
        """The quotient of two ratios; a tie when their ranges allow 1, both are ties, or it is inside the floor."""
        value, low, high = self.value / other.value, self.low / other.high, self.high / other.low
        tie = low < 1.0 < high or (self.tie and other.tie) or _inside(value, floor)
        return Ratio(value, low, high, min(self.n, other.n), tie, self.apart or other.apart)

    @property
    def change(self) -> float:
        """Ratio minus 1."""
        return self.value - 1.0


def summarize(values: Iterable[float | None]) -> Summary | None:
    """Median with range (fewer than 5 values) or bootstrap interval; None when nothing was measured."""
    found = [v for v in values if v is not None and math.isfinite(v)]
    if not found:
        return None
    median = statistics.median(found)
    if len(found) < BOOTSTRAP_RUNS:
        return Summary(median, min(found), max(found), len(found), "range")
    low, high = bootstrap(found)
    return Summary(median, low, high, len(found), "interval")


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median, seeded: the same values give the same interval in any order."""
    if min(values) == max(values):
        return values[0], values[0]
    # What scipy.stats.bootstrap does with method "percentile"; importing scipy.stats takes longer than all the rest.
    import numpy as np

    lower, upper = _middles(len(values))
    ordered = np.sort(values)
    medians = np.sort((ordered[lower] + ordered[upper]) / 2)
    # Like numpy.percentile, which takes longer to look at its arguments than this takes.
    place = (RESAMPLES - 1) * (1 - CONFIDENCE) / 2
    below, part = int(place), place % 1
    low, high = medians[[below, below + 1]], medians[[-1 - below, -2 - below]]
    return float(low[0] + (low[1] - low[0]) * part), float(high[0] + (high[1] - high[0]) * part)


@functools.cache
def _middles(n: int) -> tuple[Any, Any]:
    """Ranks of the two middle values of each resample of n values; they are one rank when n is odd."""
    import numpy as np

    drawn = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    middle = (n - 1) // 2, n // 2
    drawn.partition(middle, axis=1)
    return drawn[:, middle[0]].copy(), drawn[:, middle[1]].copy()


def paired_ratio(
    numerator: Mapping[Key, float],
    denominator: Mapping[Key, float],
    floor: float,
    *,
    apart: bool = False,
    machines: int | None = None,
) -> Ratio | None:
    """Ratio of two cells: geometric middle of the ratios of pairs, tie when inside `floor` or across 1.

    Both map the key of a pair -> value. A pair ran on one machine or in one block, so what slows both cancels. Pairs of one
    machine resemble each other, so a few machines give their whole range instead of a bootstrap interval.
    """
    if not numerator or not denominator:
        return None
    pairs = [key for key in numerator if key in denominator]
    if not pairs:
        value = statistics.median(numerator.values()) / statistics.median(denominator.values())
        return Ratio(value, value, value, 0, _inside(value, floor), apart)
    logs = [math.log(numerator[i] / denominator[i]) for i in pairs]
    middle = statistics.median(logs)
    few = len(logs) < BOOTSTRAP_RUNS or 1 < (machines or 1) < BOOTSTRAP_RUNS
    low, high = (min(logs), max(logs)) if few else bootstrap(logs)
    value, below, above = math.exp(middle), math.exp(low), math.exp(high)
    crosses = len(logs) > 1 and below <= 1.0 <= above
    return Ratio(value, below, above, len(pairs), crosses or _inside(value, floor), apart, machines)


def _inside(ratio: float, floor: float) -> bool:
    """Whether a ratio or its inverse differs from 1 by no more than the floor."""
    return max(ratio, 1 / ratio) - 1.0 <= floor


def noise_floor(spreads: Iterable[Summary | None]) -> float:
    """The noise floor: the median, over cells with two or more runs, of half the relative range of their repeats."""
    halves = [s.spread / 2 for s in spreads if s is not None and s.n > 1]
    return statistics.median(halves) if halves else 0.0


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Spearman's rho; None below three points or for a constant."""
    if len(xs) < 3 or len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    # Importing scipy.stats for this took longer than reading 500 records.
    return statistics.correlation(_ranks(xs), _ranks(ys))


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value; equal ones share the mean of theirs."""
    ordered = sorted(values)
    return [(ordered.index(v) + len(ordered) - 1 - ordered[::-1].index(v)) / 2 for v in values]
