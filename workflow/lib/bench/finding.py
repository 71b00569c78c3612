"""What a finding is, and the words its sentences share."""

from dataclasses import dataclass, field
from typing import Any

from bench.cells import CellResult
from bench.stats import Ratio
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
    """How far a ratio reaches over its pairs, and whether machines are part of it; nothing for a single pair."""
    parts = [f"{ratio.low:.2f} to {ratio.high:.2f} over {ratio.n} paired runs"] if ratio.n > 1 else []
    parts += ["on different machines"] if ratio.apart else []
    return f" ({', '.join(parts)})" if parts else ""


def times(ratio: Ratio) -> str:
    """A ratio as a factor."""
    return f"{ratio.value:.2f}x{uncertainty(ratio)}"


def percent(change: float) -> str:
    """A change as a signed percentage."""
    return f"{change * 100:+.0f}%"
