"""The answer and what to use when, per platform, arm and workload: from paired runs alone, never from medians.

Medians of two configs may come from two machines, and machines differ by more than engines do.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dtbench.report.sentences import FACTOR_FROM, as_lead, code, faster, listed, support
from dtbench.results.cells import CellResult, cell_cost
from dtbench.results.comparison import Results
from dtbench.results.numbers import tokens_per_s
from dtbench.results.runs import MISSING
from dtbench.results.stats import FIRM_PAIRS, Ratio
from dtbench.study.matrix import Matrix
from harness.contract.units import GB

UNPAIRED = "no two of them ran on one machine, and no three pairs of runs on different machines compare them"
OF_THE_HOST = "both wait for the host, and GPU-busy times give no such order"


class Lead(NamedTuple):
    """The config that comes closest to the fastest one."""

    config: str
    ratio: Ratio
    """The fastest over it."""


class Lightest(NamedTuple):
    """The config with the lowest peak."""

    config: str
    peak_gb: float
    ratio: Ratio | None
    """The fastest over it; None where that is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the records support on one platform, in one arm, for one workload."""

    where: str
    platform: str = ""
    arm: str = ""
    configs: tuple[str, ...] = ()
    """Every config of this place that the study asks for."""
    device: str = "cuda"
    finished: tuple[str, ...] = ()
    best: str | None = None
    """None: nothing finished, or no paired runs rank what did."""
    repeats: int = 1
    """Runs that the study plans for a cell."""
    single: bool = False
    """Whether the best config has only one run."""
    facts: str = ""
    """Speed, peak and cost of the best, in words."""
    ties: tuple[str, ...] = ()
    behind: Lead | None = None
    ratios: dict[str, Ratio] = field(default_factory=dict)
    """The best over each config that paired runs compare it with."""
    unknown: tuple[str, ...] = ()
    """Finished configs that may be faster: no chain of paired runs compares them with the best."""
    of_the_host: bool = False
    """Whether paired runs were left out because both cells wait for the host."""
    machines: int | None = None
    """Most machines that a comparison with the best rests on; None: unknown."""
    lightest: Lightest | None = None
    failed: tuple[tuple[str, str], ...] = ()
    """Config and fate."""
    unrun: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The answer for this place."""
        parts = [self._verdict()]
        if self.ties:
            equal = [name for name in self.ties if self.ratios[name].firm]
            close = [name for name in self.ties if name not in equal]
            parts += [f"Equally fast within the noise of repeats: {listed(equal)}."] if equal else []
            parts += (
                [f"Not told apart from it by fewer than {FIRM_PAIRS} pairs of runs: {listed(close)}."] if close else []
            )
        if self.behind:
            parts.append(f"It is {faster(self.behind.ratio, f'the next one, {code(self.behind.config)}')}.")
        if self.best and self.unknown:
            why = f"no machine ran them beside it{f' or {OF_THE_HOST}' if self.of_the_host else ''}"
            parts.append(f"Not ranked, because {why}: {listed(self.unknown)}.")
        if self.failed:
            parts.append(f"Failed: {', '.join(f'{code(config)} ({fate})' for config, fate in self.failed)}.")
        if self.unrun:
            parts.append(f"Not run yet: {listed(self.unrun)}.")
        return " ".join(parts)

    def _verdict(self) -> str:
        if not self.finished:
            return "Nothing finished."
        if self.best is None:
            return f"No ranking of {listed(self.finished)}: {self._unranked}."
        if not (self.ties or self.behind):
            return f"{code(self.best)} is the only one that {self._only}{self.facts}."
        return f"{code(self.best)} is fastest{', in a single run' if self.single else ''}{self.facts}."

    @property
    def _unranked(self) -> str:
        return OF_THE_HOST if self.of_the_host else UNPAIRED

    @property
    def _only(self) -> str:
        return "finished" if len(self.finished) == 1 else "has a speed"

    @property
    def advice(self) -> list[str]:
        """What to use, one sentence each."""
        if not self.finished:
            return []
        if self.device != "cuda":
            return [f"{self.where}: CPU speeds do not carry over to GPUs. Use this study to check that engines agree."]
        if self.best is None:
            return [f"{self.where}: no recommendation. Of {listed(self.finished)}, {self._unranked}."]
        use = f"when memory allows, use {listed([self.best, *self.ties], 'or')}"
        hedges = ["from one machine"] if self.machines == 1 else []
        if self.single and self.repeats > 1:
            use = f"no firm recommendation: {code(self.best)} was fastest in one of {self.repeats} planned runs"
            hedges = []
        if not (self.ties or self.behind):
            use = f"{code(self.best)} is the only one that {self._only}, so there is nothing to choose from"
        if self.unknown:
            hedges.append(f"{listed(self.unknown, 'or')} may be faster, as no machine ran them beside it")
        told = f" ({'; '.join(hedges)})" if hedges else ""
        lines = [f"{self.where}: {use}{told}."]
        if self.lightest and self.lightest.config != self.best:
            light = self.lightest
            slower = _slower(light.ratio, self.best)
            lines.append(
                f"{self.where}: when memory is short, use {code(light.config)}: {light.peak_gb:.2f} GB, {slower}."
            )
        return lines


def _slower(ratio: Ratio | None, best: str) -> str:
    """How far the lightest config is behind the fastest, by their paired runs."""
    if ratio is None:
        return f"how much slower than {code(best)} is unknown, as no machine ran both"
    if ratio.tie:
        return f"as fast as {code(best)}" if ratio.firm else f"in speed not told apart from {code(best)}"
    if ratio.value < FACTOR_FROM:
        return f"{code(best)} is {ratio.change * 100:.0f}% faster{support(ratio, as_lead)}"
    return f"{code(best)} is {ratio.value:.1f}x as fast{support(ratio)}"


def choices(matrix: Matrix, results: Results) -> list[Choice]:
    """One choice per platform, arm and workload; none while no cell of the study has finished.

    More sequences a step are another workload, not a faster config; in an arm of equal numerics so are other ones.
    """
    found = []
    for platform, arm in results.places():
        cells = [c for key, c in results.cells.items() if (key[0], key[2]) == (platform, arm) and c.cell.spec]
        workloads = list(dict.fromkeys(cell.cell.terms for cell in cells))
        for terms in workloads:
            telling = [part for part, *others in zip(terms, *workloads, strict=True) if len(set(others)) > 1]
            where = ", ".join([platform, arm, *telling])
            found.append(_choice(matrix, results, where, [cell for cell in cells if cell.cell.terms == terms]))
    return [c for c in found if c.finished or c.failed] if any(c.finished for c in found) else []


def _choice(matrix: Matrix, results: Results, where: str, cells: list[CellResult]) -> Choice:
    alive = [cell for cell in cells if cell.finished]
    failed = tuple((c.key[1], c.fate) for c in cells if not c.finished and c.outcome != MISSING)
    unrun = tuple(c.key[1] for c in cells if c.outcome == MISSING)
    finished = tuple(cell.key[1] for cell in alive)
    entry = matrix.platforms[cells[0].key[0]]
    found = Choice(
        where=where,
        platform=cells[0].key[0],
        arm=cells[0].key[2],
        configs=tuple(cell.key[1] for cell in cells),
        device=entry.device,
        repeats=matrix.study.repeats,
        finished=finished,
        failed=failed,
        unrun=unrun,
    )
    board = _Board.of(results, alive)
    found = dataclasses.replace(found, of_the_host=board.of_the_host)
    timed = [cell for cell in alive if cell.median(tokens_per_s) is not None]
    best = board.best() if len(timed) > 1 else next(iter(timed), None)
    if best is None:
        return found
    ratios = board.ratios(best)
    clear = _clearly_slower(results, best, alive)
    behind = [(ratio.value, name) for name, ratio in ratios.items() if not ratio.tie]
    peaks = [(peak, cell.key[1]) for cell in alive if (peak := cell.peak())]
    return dataclasses.replace(
        found,
        best=best.key[1],
        single=len(best.finished) == 1 and len(alive) > 1,
        facts=_facts(best, cell_cost(best, entry.price)),
        ties=tuple(name for name, ratio in ratios.items() if ratio.tie),
        behind=Lead(min(behind)[1], ratios[min(behind)[1]]) if behind else None,
        ratios=clear | ratios,
        unknown=tuple(name for name in board.unknown(best) if name not in clear),
        machines=max((r.machines for r in ratios.values() if r.machines), default=None),
        lightest=Lightest(min(peaks)[1], min(peaks)[0] / GB, (clear | ratios).get(min(peaks)[1])) if peaks else None,
    )


def _clearly_slower(results: Results, best: CellResult, cells: list[CellResult]) -> dict[str, Ratio]:
    """The best over cells of other machines, if they are further behind than machines alone have ever made one cell
    differ."""
    if results.machine_spread(*results.platforms) is None:
        return {}
    ratios = {cell.key[1]: results.speed_ratio(best, cell) for cell in cells}
    return {name: r for name, r in ratios.items() if r and r.apart and r.value > 1 and not r.tie}


def _facts(cell: CellResult, usd_per_mtoken: float | None) -> str:
    speed, peak = cell.median(tokens_per_s), cell.peak()
    machines = len({run.machine for run in cell.finished if run.machine})
    parts = []
    if speed is not None:
        median = f" (median over {machines} machines)" if machines > 1 else ""
        parts.append(f"{speed:.{1 if speed < 100 else 0}f} tok/s{median}")
    if peak is not None:
        parts.append(f"peak {peak / GB:.2f} GB")
    if usd_per_mtoken is not None:
        parts.append(f"${usd_per_mtoken:.4f} per million tokens")
    if cell.dagger:
        parts.append("only with a remedy")
    died = [f"{n}x {name}" for name, n in sorted(cell.outcomes.items()) if name not in ("ok", MISSING)]
    told = f": {', '.join(parts)}" if parts else ""
    return f"{told} ({', '.join(died)} in its other runs)" if died else told


@dataclass(frozen=True, slots=True)
class _Board:
    """Finished cells of one workload, and every ratio of two of them that advice may rest on."""

    cells: dict[str, CellResult]
    found: dict[tuple[str, str], Ratio] = field(default_factory=dict)
    of_the_host: bool = False

    @classmethod
    def of(cls, results: Results, cells: Iterable[CellResult]) -> "_Board":
        named = {cell.key[1]: cell for cell in cells}
        found = {(a, b): results.speed_ratio(named[a], named[b]) for a, b in itertools.combinations(named, 2)}
        both = found | {(b, a): ratio and ratio.inverse for (a, b), ratio in found.items()}
        told = {(a, b): ratio for a, b in itertools.permutations(named, 2) if (ratio := both[a, b]) is not None}
        ranking = {names: ratio for names, ratio in told.items() if ratio.ranks}
        return cls(named, ranking, any(ratio.only_of_the_host for ratio in told.values()))

    def ratios(self, cell: CellResult) -> dict[str, Ratio]:
        """The cell over each config that paired runs compare it with."""
        return {b: ratio for (a, b), ratio in self.found.items() if a == cell.key[1]}

    def best(self) -> CellResult | None:
        """Among the cells that no other beats: the one compared with most others, then the one ahead of most."""
        ranked = [name for name in self.cells if any(a == name for a, _ in self.found)]
        unbeaten = [name for name in ranked if not any(b == name and _wins(r) for (_, b), r in self.found.items())]

        def weight(name: str) -> tuple[int, int]:
            values = [ratio.value for (a, _), ratio in self.found.items() if a == name]
            return len(values), sum(value > 1 for value in values)

        return self.cells[max(unbeaten or ranked, key=weight)] if ranked else None

    def unknown(self, best: CellResult) -> tuple[str, ...]:
        """The cells that neither the best nor one slower than the best was compared with."""
        known, new = {best.key[1]}, [best.key[1]]
        while new:
            name = new.pop()
            reached = {b for (a, b), r in self.found.items() if a == name and (name == best.key[1] or _wins(r))}
            new += reached - known
            known |= reached
        return tuple(name for name in self.cells if name not in known)


def _wins(ratio: Ratio) -> bool:
    return ratio.value > 1 and not ratio.tie
