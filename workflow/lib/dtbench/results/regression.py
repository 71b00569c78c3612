"""`dtbench compare BASE NEW`: did anything get slower between two sets of records? Works on records alone.

Cells are matched by spec. The noise is that of repeats: the same cell, side and machine. It is taken from all cells
that are as host-bound as this one, since three repeats alone say little about how much a fourth may differ.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from dtbench.results.numbers import timed_share, tokens_per_s
from dtbench.results.machines import Pairs, Sample, machines, pair, spread
from dtbench.results.runs import Run
from dtbench.results.sides import Side, by_cell, environment_differences, newest, unmatched
from dtbench.results.stats import Ratio, paired_ratio
from harness.contract.parity import loss_differences
from harness.contract.record import Record
from harness.contract.spec import RunSpec

FALSE_ALARM = 1e-3
"""How often a comparison of two equal sides may find a difference, all its cells together."""
MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, for many normal samples; for few it is less."""
HOST_BOUND_IDLE = 0.1
"""Share of the timed step without a kernel from which a cell counts as host-bound. On H200s, repeats of cells below
half of it differed by 0.2% to 0.5%, those of cells above it by 1% to 18%."""
UNKNOWN_SPREAD = 0.05
"""What machines may do to a GPU-bound cell where the records do not show it; on H200s it was up to 2%."""

Verdict = Literal["slower", "gain", "within", "noise", "apart", "unknown", "broken", "repaired", "dead"]
WORDS: dict[Verdict, str] = {
    "slower": "slower",
    "gain": "suspicious gain",
    "within": "within the limit",
    "noise": "no difference beyond noise",
    "apart": "not decided: no machine ran both (this needs a GPU-bound cell and 3 pairs)",
    "unknown": "not decided: noise unknown, repeat some runs",
    "broken": "no longer finishes",
    "repaired": "finishes only now",
    "dead": "finishes on neither side",
}
DECIDED: tuple[Verdict, ...] = ("slower", "gain", "within", "noise")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One cell on both sides."""

    platform: str
    config: str
    arm: str
    verdict: Verdict
    bound: Literal["host", "gpu", "unknown"] = "unknown"
    base_tokens_per_s: float | None = None
    """Median of all runs that count."""
    new_tokens_per_s: float | None = None
    ratio: Ratio | None = None
    """Speed of NEW over BASE."""
    noise: float | None = None
    """The smallest change of speed, as a share, that counts as more than noise."""
    loss_difference: float | None = None
    """Largest relative difference of the first losses; null: one side has none."""
    outcomes: tuple[str, str] = ("ok", "ok")
    """How most runs of either side ended."""

    @property
    def name(self) -> str:
        """Platform, config and arm in one text."""
        return f"{self.platform} {self.config} {self.arm}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The whole result of `dtbench compare`."""

    base: str
    new: str
    max_slowdown: float
    """Largest loss of speed that is accepted, as a share of BASE's speed."""
    environment: dict[str, tuple[str, str]]
    """What differs between the sides -> all values of BASE, all of NEW."""
    cells: tuple[Compared, ...]
    unmatched: tuple[str, ...]
    """Cells of one side only, each with the reason."""

    @property
    def exit_status(self) -> int:
        """0: nothing is slower beyond noise and limit; 1: something is; 2: no cell could be decided."""
        found = {cell.verdict for cell in self.cells}
        return 1 if "slower" in found else 0 if found & set(DECIDED) else 2

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**dataclasses.asdict(self), "exit_status": self.exit_status}


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """The runs of one cell on both sides."""

    runs: tuple[tuple[Run, ...], tuple[Run, ...]]
    samples: tuple[list[Sample], list[Sample]]

    @property
    def spec(self) -> RunSpec:
        return self.runs[0][0].spec

    @cached_property
    def bound(self) -> Literal["host", "gpu", "unknown"]:
        idle = [share for record in self.records if (share := timed_share("idle")(record)) is not None]
        if not idle:
            return "unknown"
        # One run that waits for the host brings the host's noise into the cell.
        return "host" if max(idle) > HOST_BOUND_IDLE else "gpu"

    @property
    def records(self) -> list[Record]:
        return [run.newest.record for side in self.runs for run in side if run.newest and run.outcome == "ok"]

    def variance(self) -> tuple[float, int]:
        """Sum of squares of log speeds around the mean of their side and machine, and its degrees of freedom."""
        groups: dict[tuple[int, str | None], list[float]] = {}
        for side, samples in enumerate(self.samples):
            for sample in samples:
                groups.setdefault((side, sample.machine), []).append(math.log(sample.value))
        squares = sum(statistics.variance(g) * (len(g) - 1) for g in groups.values() if len(g) > 1)
        return squares, sum(len(g) - 1 for g in groups.values())


def compare(base: Side, new: Side, max_slowdown: float = 0.05) -> Comparison:
    """Match the cells of two sides and judge each; cells in BASE's order."""
    sides = (by_cell(base), by_cell(new))
    places = machines({f"{n} {a.path}": a.record for n, side in enumerate((base, new)) for a in newest(side)})
    both = [_cell(sides[0][key], sides[1][key], places) for key in sides[0] if key in sides[1]]
    return Comparison(
        base=base.name,
        new=new.name,
        max_slowdown=max_slowdown,
        environment=environment_differences(base, new),
        cells=tuple(_judge(cell, both, max_slowdown) for cell in both),
        unmatched=tuple(unmatched(*sides)),
    )


def _cell(base: Sequence[Run], new: Sequence[Run], places: dict[str, str]) -> _Cell:
    def samples(side: int, runs: Sequence[Run]) -> list[Sample]:
        counted = [(run.spec.identity.repeat, run.newest) for run in runs if run.newest and run.outcome == "ok"]
        found = [(r, places.get(f"{side} {a.path}"), tokens_per_s(a.record)) for r, a in counted]
        return [Sample(repeat, machine, value) for repeat, machine, value in found if value]

    return _Cell(runs=(tuple(base), tuple(new)), samples=(samples(0, base), samples(1, new)))


def _judge(cell: _Cell, cells: Sequence[_Cell], max_slowdown: float) -> Compared:
    outcomes = tuple(statistics.mode(run.outcome for run in side) for side in cell.runs)
    told = Compared(
        platform=cell.spec.platform.name,
        config=cell.spec.identity.config,
        arm=cell.spec.identity.arm,
        verdict="unknown",
        bound=cell.bound,
        outcomes=(outcomes[0], outcomes[1]),
    )
    if not all(cell.samples):
        ended: Verdict = "broken" if cell.samples[0] else "repaired" if cell.samples[1] else "dead"
        return dataclasses.replace(told, verdict=ended)
    before, after = (statistics.median(s.value for s in side) for side in cell.samples)
    pairs = _pairs(cell)
    apart = pairs.machines is None
    alike = [other for other in cells if other.bound == cell.bound]
    noise = _noise(alike, len(pairs.numerator.keys() & pairs.denominator.keys()), len(cells))
    if noise is not None and apart:
        noise = max(noise, _between_machines(alike))
    ratio = paired_ratio(pairs.numerator, pairs.denominator, noise or 0.0, apart=apart, machines=pairs.machines)
    assert ratio is not None  # both sides have numbers
    verdict: Verdict
    if apart and not (cell.bound == "gpu" and ratio.ranks):
        verdict = "apart"
    elif noise is None:
        verdict = "unknown"
    elif ratio.tie:
        verdict = "noise"
    else:
        verdict = "slower" if ratio.change < -max_slowdown else "gain" if ratio.change > max_slowdown else "within"
    return dataclasses.replace(
        told,
        verdict=verdict,
        base_tokens_per_s=before,
        new_tokens_per_s=after,
        ratio=ratio,
        noise=noise,
        loss_difference=_loss_difference(cell),
    )


def _pairs(cell: _Cell) -> Pairs:
    """NEW over BASE, on the machines that ran both; else in order, since repeats of two studies have no common cause."""
    pairs = pair(cell.samples[1], cell.samples[0])
    if pairs.machines is not None:
        return pairs
    ordered = [sorted(side, key=lambda s: s.repeat) for side in cell.samples]
    base, new = ([dataclasses.replace(s, repeat=n) for n, s in enumerate(side, 1)] for side in ordered)
    return pair(new, base)


def _noise(alike: Iterable[_Cell], pairs: int, tests: int) -> float | None:
    """The change of speed that noise alone exceeds with `FALSE_ALARM` in `tests` cells; None without repeats.

    Cells that are as host-bound differ in noise by a factor of ten, and three repeats that agree by chance do not show
    it. So the noisiest of them stands for all; the degrees of freedom are those of all.
    """
    from scipy.stats import t

    found = [(squares, degrees) for squares, degrees in (cell.variance() for cell in alike) if degrees]
    if not found or not pairs:
        return None
    deviation = math.sqrt(max(squares / degrees for squares, degrees in found))
    width = float(t.isf(FALSE_ALARM / 2 / tests, sum(degrees for _, degrees in found)))
    return math.expm1(width * MEDIAN_OVER_MEAN * deviation * math.sqrt(2 / pairs))


def _between_machines(alike: Iterable[_Cell]) -> float:
    """The most that machines have changed one of these cells within a side."""
    found = [s for cell in alike for side in cell.samples if (s := spread(side)) is not None]
    return max(found, default=UNKNOWN_SPREAD)


def _loss_difference(cell: _Cell) -> float | None:
    """Between the first runs of either side, over the steps of the parity gate."""
    losses = [
        next((r.newest.record.measured.loss for r in side if r.newest and r.newest.record.measured), [])
        for side in cell.runs
    ]
    return max(loss_differences(losses[1], losses[0], cell.spec.protocol.parity_steps), default=None)


def text(found: Comparison) -> str:
    """The whole comparison for a terminal: environment first, then what matters most, then the conclusion."""
    lines = [f"BASE {found.base}", f"NEW  {found.new}", "", "Environment:"]
    lines += [f"  {name}: {a} -> {b}" for name, (a, b) in found.environment.items()] or ["  no difference recorded"]
    order = list(WORDS)
    lines += ["", "Cells (tokens per second, NEW over BASE):"]
    lines += [f"  {_line(cell)}" for cell in sorted(found.cells, key=lambda cell: order.index(cell.verdict))]
    lines += [f"  {one}" for one in found.unmatched]
    return "\n".join([*lines, "", _conclusion(found)])


def _line(cell: Compared) -> str:
    words = f"{cell.name}: {WORDS[cell.verdict]}"
    r = cell.ratio
    if r is None:
        return f"{words} (most runs ended as: BASE {cell.outcomes[0]}, NEW {cell.outcomes[1]})"
    rests = f"{_pairs_text(r)}, no machine in common" if r.apart else f"{_pairs_text(r)} on {r.machines} machine{'s' * (r.machines != 1)}"
    noise = "noise unknown" if cell.noise is None else f"noise {cell.noise:.1%}"
    bound = {"host": ", host-bound", "gpu": ", GPU-bound", "unknown": ""}[cell.bound]
    speeds = f"{cell.base_tokens_per_s:.0f} -> {cell.new_tokens_per_s:.0f} tok/s"
    note = ""
    if cell.verdict == "gain":
        apart = "unknown" if cell.loss_difference is None else f"{cell.loss_difference:.2%}"
        note = f"; check that it still trains the same (first losses differ by: {apart})"
    return f"{words}; {r.value:.3f}x ({r.low:.3f} to {r.high:.3f}; {rests}; {noise}{bound}); {speeds}{note}"


def _pairs_text(ratio: Ratio) -> str:
    return f"{ratio.n} pair{'s' * (ratio.n != 1)}"


def _conclusion(found: Comparison) -> str:
    counts = {verdict: [cell for cell in found.cells if cell.verdict == verdict] for verdict in WORDS}
    limit = f"{found.max_slowdown:.0%}"
    decided = sum(len(counts[verdict]) for verdict in DECIDED)
    if found.exit_status == 2:
        return (
            f"Nothing could be compared: {len(found.cells)} cells match by spec, and none of them could be decided. "
            "Run the same study on both sides, three repeats or more, on one machine if you can."
        )
    told = [f"{len(counts['slower'])} of {decided} decided cells lost more than {limit} of their speed, beyond noise."]
    told += [f"{len(counts['gain'])} gained more than {limit}."] if counts["gain"] else []
    told += [f"{len(counts['broken'])} no longer finish."] if counts["broken"] else []
    told += [f"{len(found.cells) - decided} were not decided."] if len(found.cells) > decided else []
    return " ".join(told)
