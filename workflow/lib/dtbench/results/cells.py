"""Cells: what the runs of one square of the table say together."""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from dtbench.results.machines import Sample
from dtbench.study.cell import Cell
from dtbench.study.platforms import Price
from dtbench.results.numbers import SECONDS_PER_HOUR, TOKENS_PER_UNIT, Value, peak_bytes, tokens_per_s
from dtbench.results.runs import MISSING, Run
from dtbench.results.stats import Summary, summarize
from dtbench.study.platforms import Price


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """One cell with its runs."""

    cell: Cell
    runs: tuple[Run, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """Platform, config, arm."""
        return self.cell.platform, self.cell.config, self.cell.arm

    @property
    def ranks(self) -> int | None:
        """Ranks of a run; None for a cell that is not run."""
        return self.cell.spec.platform.world_size if self.cell.spec else None

    @cached_property
    def finished(self) -> tuple[Run, ...]:
        """Runs whose numbers count."""
        return tuple(run for run in self.runs if run.outcome == "ok")

    @cached_property
    def outcome(self) -> str:
        """One word for the table: `ok` as soon as a run counts, else what happened most often."""
        if self.cell.exclusion is not None:
            return self.cell.exclusion.reason
        counts = self.outcomes
        if not counts:
            return MISSING
        if "ok" in counts:
            return "ok"
        return max(counts, key=lambda name: (name != MISSING, counts[name]))

    @property
    def fate(self) -> str:
        """The outcome as words for a sentence; called a guess if every diagnosis of it has low confidence."""
        told = {run.newest.diagnosis.confidence for run in self.runs if run.newest and run.outcome == self.outcome}
        return f"{self.outcome}, a guess" if told == {"low"} else self.outcome

    @cached_property
    def outcomes(self) -> Counter[str]:
        """How often each outcome occurred among the runs."""
        return Counter(run.outcome for run in self.runs)

    @property
    def dagger(self) -> bool:
        """Whether the cell has numbers only because of a remedy."""
        remedied = [run.newest is not None and run.newest.record.dagger for run in self.finished]
        return bool(remedied) and all(remedied)

    @property
    def flags(self) -> tuple[str, ...]:
        """What makes the numbers doubtful, in any run."""
        measured = (run.newest.record.measured for run in self.finished if run.newest)
        return tuple(sorted({flag for m in measured if m for flag in m.flags}))

    @cached_property
    def _known(self) -> dict[Value, list[Sample]]:
        """What `samples` has read of the records."""
        return {}

    def numbers(self, value: Value) -> list[float]:
        """A number of every run that counts and has it."""
        return [sample.value for sample in self.samples(value)]

    def summary(self, value: Value) -> Summary | None:
        """A number over the runs that count."""
        return summarize(self.numbers(value))

    def median(self, value: Value) -> float | None:
        """Median over the runs that count, without an interval."""
        found = self.numbers(value)
        return statistics.median(found) if found else None

    def mean(self, value: Value) -> float | None:
        """The mean of the runs that count. Used for parts of a whole, because their medians would not add up to it."""
        found = self.numbers(value)
        return statistics.mean(found) if found else None

    def kernel_kinds(self) -> list[str]:
        """Kinds of kernels that the profiled passes of the finished runs saw, in the order first met."""
        records = [run.newest.record for run in self.finished if run.newest]
        profiles = [record.measured.profile or {} for record in records if record.measured]
        found = [profile.get("kernel_kinds_s") for profile in profiles]
        return list(dict.fromkeys(kind for kinds in found if isinstance(kinds, dict) for kind in kinds))

    def samples(self, value: Value) -> list[Sample]:
        """The number of each run that counts, ready for pairing."""
        if value not in self._known:
            found = ((r.spec.identity.repeat, r.machine, value(r.newest.record)) for r in self.finished if r.newest)
            self._known[value] = [Sample(repeat, machine, n) for repeat, machine, n in found if n is not None]
        return self._known[value]

    def peak(self) -> float | None:
        """Largest peak over all runs, failed ones included, because the cell needs the maximum, not the median."""
        return self._largest[0] if self._largest else None

    @property
    def peak_is_held(self) -> bool:
        """Whether the largest peak is what a run held when it died, so that the cell needs more."""
        return self._largest is not None and self._largest[1]

    @cached_property
    def _largest(self) -> tuple[float, bool] | None:
        """Largest peak in bytes, and whether it is what a run held when it died."""
        records = [run.newest.record for run in self.runs if run.newest]
        found = [(peak, r.measured is None or r.measured.memory is None) for r in records if (peak := peak_bytes(r))]
        return max(found, key=lambda peak: peak[0], default=None)

    def parity_difference(self) -> float | None:
        """Largest relative loss difference to the reference over the runs."""
        return max((run.parity.difference for run in self.runs if run.parity), default=None)


def collect(loaded: Iterable[tuple[Cell, list[Run]]]) -> dict[tuple[str, str, str], CellResult]:
    """(platform, config, arm) -> its result, in table order."""
    results = (CellResult(cell=cell, runs=tuple(runs)) for cell, runs in loaded)
    return {result.key: result for result in results}


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
    seconds = (e.record.wall_s or 0.0 for r in results for run in r.runs for e in run.attempts)
    return sum(seconds) / SECONDS_PER_HOUR
