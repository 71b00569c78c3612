"""What a finding is, and the words its sentences share."""

from dataclasses import dataclass, field
from typing import Any

from dtbench.results.cells import CellResult
from dtbench.results.stats import Ratio
from harness.contract.units import GB


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One sentence and the numbers it stands on."""

    kind: str
    sentence: str
    detail: str = ""
    """Text that came from a log or a source: shown escaped, after the sentence."""
    numbers: dict[str, Any] = field(default_factory=dict)


def peak_gb(cell: CellResult) -> float | None:
    """Largest peak of a cell's runs, in GB."""
    peak = cell.peak()
    return None if peak is None else peak / GB


def uncertainty(ratio: Ratio) -> str:
    """How far a ratio reaches over its pairs, and whether machines are part of it."""
    parts = [f"{ratio.low:.2f} to {ratio.high:.2f} over {ratio.n} paired runs"] if ratio.n > 1 else ["one pair of runs"]
    if ratio.n == 0:
        parts = ["runs of different repeats"]
    return f" ({', '.join(parts + (['on different machines'] if ratio.apart else []))})"


def apart(ratio: Ratio) -> str:
    """The reservation that a ratio needs whose cells share no machine."""
    return " (on different machines)" if ratio.apart else ""


def level(ratio: Ratio) -> str:
    """The verb of a tie: without a shared machine, not to be told apart is all that is known."""
    return "cannot be told apart" if ratio.apart else "tie"


def times(ratio: Ratio) -> str:
    """A ratio as a factor."""
    return f"{ratio.value:.2f}x{uncertainty(ratio)}"


def percent(change: float) -> str:
    """A change as a signed percentage."""
    return f"{change * 100:+.0f}%"
