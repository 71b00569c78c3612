"""What a finding is, and the phrases that all sentences of a report share.

Sentences are plain text with config names in backticks; the templates make them Markdown or HTML.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dtbench.results.cells import CellResult
from dtbench.results.stats import Ratio
from harness.contract.units import GB

Number = str | float | bool | list[float] | None
"""A value of a finding, by name: the place that it is of, or what it stands on."""

FACTOR_FROM = 1.5
"""A lead of at least this factor is written as a factor, a smaller one as a percentage."""


Kind = Literal[
    "head_to_head",
    "arms",
    "own_cost",
    "precision",
    "reshard_price",
    "stage_order",
    "pipe",
    "nccl_share",
    "offload",
    "does_not_fit",
    "survival",
    "compile_incomplete",
    "host_bound",
    "noise",
    "prediction",
]
"""What a finding is about."""
NOT_TO_BE_HAD = math.log(2)
"""Weight of a config that does not fit: as much as one that is half as fast."""
ANOTHER_TRAINING = math.log(1.5)
"""Weight of numbers that compare what should not be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One sentence and the numbers it stands on."""

    kind: Kind
    sentence: str
    weight: float
    """How much it would change a decision: the logarithm of the factor in speed that a reader loses without it."""
    detail: str = ""
    """Text that came from a log or a source: shown escaped, after the sentence."""
    numbers: Mapping[str, Number] = field(default_factory=dict)


def lean(*ratios: Ratio) -> float:
    """Weight of ratios: that of the one that is farthest from 1; ties weigh nothing."""
    return max((abs(math.log(ratio.value)) for ratio in ratios if not ratio.tie), default=0.0)


def code(name: str) -> str:
    """A config's name as code."""
    return f"`{name}`"


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names of configs as code, with a conjunction before the last one."""
    *first, final = [code(name) for name in names]
    return f"{', '.join(first)} {last} {final}" if first else final


def peak_gb(cell: CellResult) -> float | None:
    """Largest peak of a cell's runs, in GB."""
    peak = cell.peak()
    return None if peak is None else peak / GB


def as_factor(value: float) -> str:
    """The number without a unit, for the ends of a range beside `2.90x`."""
    return f"{value:.2f}"


def as_lead(value: float) -> str:
    """How much faster, in percent, rounded: for ends of ranges that stand beside one."""
    return f"{value * 100 - 100:.0f}%"


def support(ratio: Ratio, show: Callable[[float], str] = as_factor) -> str:
    """What a ratio rests on, in brackets: its range, how many pairs of runs, and from how many machines."""
    return f" ({_pairs(ratio, show)}{', on different machines' if ratio.apart else ''}{_host(ratio, show)})"


def _host(ratio: Ratio, show: Callable[[float], str]) -> str:
    """The part of a lead that another host may change, in words."""
    if ratio.tie or ratio.host_bound is None:
        return ""
    if ratio.host_bound == "faster":
        return "; the faster one is host-bound: at least this on a faster host"
    who = "both are" if ratio.host_bound == "both" else "the slower one is"
    leads = ratio.gpu is not None and (ratio.gpu > 1) == (ratio.value > 1)
    rest = f": {show(ratio.gpu)} by GPU-busy time" if ratio.gpu is not None and leads else ""
    return f"; {who} host-bound{rest or ', so a faster host may change it'}"


def _pairs(ratio: Ratio, show: Callable[[float], str] = as_factor) -> str:
    if ratio.n == 0:
        return "medians, as no two runs make a pair"
    if ratio.n == 1:
        return "one pair of runs"
    machines = ", one machine" if ratio.machines == 1 else f" on {ratio.machines} machines" if ratio.machines else ""
    return f"{show(ratio.low)} to {show(ratio.high)} over {ratio.n} paired runs{machines}"


def times(ratio: Ratio) -> str:
    """A ratio as a factor."""
    return f"{ratio.value:.2f}x"


def faster(ratio: Ratio, than: str) -> str:
    """A lead and what it rests on: `25% faster than` or `2.90x as fast as` another config."""
    if ratio.value < FACTOR_FROM:
        return f"{as_lead(ratio.value)} faster than {than}{support(ratio, as_lead)}"
    return f"{times(ratio)} as fast as {than}{support(ratio)}"


def unresolved(ratio: Ratio) -> str:
    """Why a tie with other machines is no result."""
    return f"measured on different machines ({times(ratio)}, {_pairs(ratio)})"


def tied(ratio: Ratio) -> str:
    """Why two cells are not ranked."""
    if ratio.apart:
        return f"indistinguishable: {unresolved(ratio)}"
    words = "equally fast within the noise of repeats" if ratio.firm else "not told apart"
    return f"{words} ({times(ratio)}, {_pairs(ratio)})"


def costless(ratio: Ratio) -> str:
    """The price of something whose two cells tie."""
    if ratio.apart:
        return f"what it costs in speed is unknown: {unresolved(ratio)}"
    words = "it costs no speed beyond the noise of repeats" if ratio.firm else "these runs show no cost in speed"
    return f"{words} ({times(ratio)}, {_pairs(ratio)})"
