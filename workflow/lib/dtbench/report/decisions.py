"""The first screen: for each platform, arm and workload the config to use, what that rests on, and what it lacks.

The fastest config of a platform is its cheapest per token too, as the price is that of the whole platform's hours.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dtbench.report.advice import Choice
from dtbench.report.sentences import listed
from dtbench.results.cells import CellResult, cell_cost
from dtbench.results.comparison import Results
from dtbench.results.numbers import joules_per_token, tokens_per_s
from dtbench.results.runs import MISSING
from dtbench.results.stats import FIRM_PAIRS, Ratio
from dtbench.study.matrix import Matrix
from harness.contract.frontier import capacity_bytes
from harness.contract.outcome import OUTCOMES
from harness.contract.units import GB

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """One config that somebody may want, with what a decision needs to know of it."""

    wish: str
    """What it is the best at."""
    config: str
    ties: tuple[str, ...]
    """Configs that its pairs do not tell apart from it."""
    tie: str
    """What these are, in words; empty without any."""
    other: str | None
    """The config that `ratio` compares it with: the next one for the fastest, else the fastest."""
    ratio: Ratio | None
    """Its speed over the other's; None: no machine ran both, or there is no other."""
    tokens_per_s: float | None
    peak_gb: float | None
    headroom_gb: float | None
    """What a rank's allocator may hold beyond the peak; None: the card's memory is unknown."""
    usd_per_mtoken: float | None
    gpu_hours_per_mtoken: float | None
    joules_per_token: float | None


class Point(NamedTuple):
    """One config that finished, in the chart of speed over memory."""

    config: str
    peak_gb: float
    tokens_per_s: float
    pareto: bool
    """No other paired config is both at least as fast and at least as light."""
    paired: bool
    """Its speed is that of the fastest over their paired ratio, so that the chart ranks as the table does."""


class Chart(NamedTuple):
    """Speed over memory in one place."""

    points: tuple[Point, ...]
    dead: tuple[tuple[str, float], ...]
    """Configs that did not fit, with the memory in GB at which they died."""
    capacity_gb: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """All picks of one platform, arm and workload."""

    where: str
    platform: str
    arm: str
    picks: tuple[Pick, ...]
    chart: Chart
    open: tuple[str, ...]
    """Why the decision is not firm, in words; empty when it is."""
    remedy: str
    """Which runs would make it firm, and the command that plans them."""


def decisions(matrix: Matrix, results: Results, choices: Iterable[Choice]) -> list[Decision]:
    """One decision per choice, in the same order."""
    return [_decision(matrix, results, choice) for choice in choices]


def _decision(matrix: Matrix, results: Results, choice: Choice) -> Decision:
    cells = [results.cells[choice.platform, config, choice.arm] for config in choice.configs]
    platform = matrix.platforms[choice.platform]
    capacity = capacity_bytes(platform) if platform.device == "cuda" else None
    reasons = tuple(_open(choice))
    return Decision(
        where=choice.where,
        platform=choice.platform,
        arm=choice.arm,
        picks=tuple(_picks(matrix, choice, {cell.key[1]: cell for cell in cells}, capacity)),
        chart=_chart(choice, cells, capacity),
        open=reasons,
        remedy=_remedy(matrix, choice, cells) if reasons else "",
    )


def _picks(matrix: Matrix, choice: Choice, cells: dict[str, CellResult], capacity: int | None) -> Iterable[Pick]:
    alive = [cells[name] for name in choice.finished]
    peaks = {c.key[1]: peak for c in alive if (peak := c.peak())}
    energies = {c.key[1]: joules for c in alive if (joules := c.median(joules_per_token)) is not None}
    wishes: dict[str, list[str]] = {}
    if choice.best:
        wishes[choice.best] = ["fastest", "cheapest per token"]
    if peaks:
        wishes.setdefault(min(peaks, key=peaks.__getitem__), []).append("lightest")
    if len(energies) == len(alive) > 1:
        wishes.setdefault(min(energies, key=energies.__getitem__), []).append("least energy")
    if len(alive) == 1:
        wishes = {name: ["the only one that finished"] for name in wishes}
    for name, found in wishes.items():
        best = name == choice.best
        other = min(choice.ratios, key=lambda n: choice.ratios[n].value, default=None) if best else choice.best
        ratio = choice.ratios.get((other or "") if best else name)
        yield _pick(
            matrix,
            cells[name],
            capacity,
            wish=", ".join(found),
            ties={name: choice.ratios[name] for name in choice.ties} if best else {},
            other=other,
            ratio=ratio if best or ratio is None else ratio.inverse,
        )


def _pick(
    matrix: Matrix,
    cell: CellResult,
    capacity: int | None,
    *,
    wish: str,
    ties: dict[str, Ratio],
    other: str | None,
    ratio: Ratio | None,
) -> Pick:
    entry = matrix.platforms[cell.key[0]]
    speed, peak = cell.median(tokens_per_s), cell.peak()
    return Pick(
        wish=wish,
        config=cell.key[1],
        ties=tuple(ties),
        tie=_tie(ties.values()),
        other=other,
        ratio=ratio,
        tokens_per_s=speed,
        peak_gb=None if peak is None else peak / GB,
        headroom_gb=None if peak is None or capacity is None else (capacity - peak) / GB,
        usd_per_mtoken=cell_cost(cell, entry.price),
        gpu_hours_per_mtoken=None
        if not speed or entry.device != "cuda"
        else entry.world_size * 1e6 / (speed * SECONDS_PER_HOUR),
        joules_per_token=cell.median(joules_per_token),
    )


def _tie(ratios: Collection[Ratio]) -> str:
    """Only enough pairs can show a tie; fewer leave the order open."""
    fewest = min((ratio.n for ratio in ratios), default=FIRM_PAIRS)
    if fewest < FIRM_PAIRS:
        return f"{_pairs(fewest)} cannot tell"
    return "a tie" if ratios else ""


def _pairs(n: int) -> str:
    return "one pair of runs" if n == 1 else f"{n} pairs of runs"


def _open(choice: Choice) -> Iterable[str]:
    """Why the records do not settle it yet."""
    if choice.device != "cuda":
        yield "CPU speeds do not carry over to GPUs"
    if choice.best is None:
        yield f"no paired runs rank {listed(choice.finished)}" if choice.finished else "nothing finished"
    if choice.best and choice.unknown:
        yield f"no machine ran {listed(choice.unknown)} beside the fastest"
    if choice.unrun:
        yield f"{listed(choice.unrun)} {'has' if len(choice.unrun) == 1 else 'have'} not run"
    if choice.best and choice.ratios:
        nearest = min(choice.ratios.values(), key=lambda ratio: ratio.value)
        if not nearest.firm:
            one = ", one machine" if nearest.machines == 1 < nearest.n else ""
            yield f"the next one is compared by {_pairs(nearest.n)}{one}" if nearest.n else "no two runs make a pair"
        elif nearest.machines == 1:
            yield "all pairs come from one machine"


def _remedy(matrix: Matrix, choice: Choice, cells: list[CellResult]) -> str:
    if choice.device != "cuda":
        return "Run the study on a GPU platform to choose a config."
    own = (matrix.root / matrix.path).parent == matrix.root / "config"
    plan = f"`dtbench plan {matrix.path.stem if own else matrix.path.name}`"
    missing = sum(run.outcome == MISSING for cell in cells for run in cell.runs)
    if missing:
        return f"{missing} missing run{'s' if missing > 1 else ''} would settle more: {plan}."
    more = max(FIRM_PAIRS, choice.repeats + 1)
    return f"No run is missing; set `repeats: {more}` in the study, then {plan} on another machine."


def _chart(choice: Choice, cells: list[CellResult], capacity: int | None) -> Chart:
    best = next((cell.median(tokens_per_s) for cell in cells if cell.key[1] == choice.best), None)
    found = []
    for cell in cells:
        name, peak, speed = cell.key[1], cell.peak(), cell.median(tokens_per_s)
        if cell.finished and peak and speed:
            # Medians of two cells may come from machines of different speed.
            ratio = choice.ratios.get(name)
            paired = name == choice.best or bool(best and ratio)
            found.append((name, peak / GB, best / ratio.value if best and ratio else speed, paired))
    ranked = [(gb, speed) for _, gb, speed, paired in found if paired]
    points = tuple(
        Point(name, gb, speed, paired and not any(_beats(other, (gb, speed)) for other in ranked), paired)
        for name, gb, speed, paired in found
    )
    capacity_gb = None if capacity is None else capacity / GB
    dead = tuple(
        (cell.key[1], capacity_gb or (cell.peak() or 0) / GB)
        for cell in cells
        if not cell.finished and cell.outcome in OUTCOMES and OUTCOMES[cell.outcome].near_gpu_limit
    )
    return Chart(points, tuple((name, gb) for name, gb in dead if gb), capacity_gb)


def _beats(other: tuple[float, float], one: tuple[float, float]) -> bool:
    """Whether another (peak in GB, speed) is no worse in either and not the same."""
    return other[0] <= one[0] and other[1] >= one[1] and other != one
