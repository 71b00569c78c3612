"""What a token costs: the platform's price over its speed. An unknown price gives null, never a guess."""

from dtbench.results.cells import CellResult, tokens_per_s
from dtbench.study.platforms import Price

SECONDS_PER_HOUR = 3600
TOKENS_PER_UNIT = 1_000_000


def usd_per_million_tokens(price: Price | None, speed_tokens_per_s: float | None) -> float | None:
    """Price per hour over tokens per hour, in US dollars per million tokens."""
    if price is None or not speed_tokens_per_s:
        return None
    return price.usd_per_hour / (speed_tokens_per_s * SECONDS_PER_HOUR) * TOKENS_PER_UNIT


def cell_cost(result: CellResult, price: Price | None) -> float | None:
    """US dollars per million tokens of a cell."""
    return usd_per_million_tokens(price, result.median(tokens_per_s))


def platform_hours(results: list[CellResult]) -> float:
    """Hours the platform was held by the supervisors of these cells, failed attempts included."""
    seconds = (e.record.wall_s or 0.0 for r in results for run in r.runs for e in run.ended)
    return sum(seconds) / SECONDS_PER_HOUR
