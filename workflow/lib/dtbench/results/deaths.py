"""Every try that did not finish, with its evidence, and the survival line between what fits and what does not."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from dtbench.results.cells import CellResult
from dtbench.results.numbers import held_bytes
from dtbench.results.runs import Attempt
from dtbench.results.stats import rank_correlation
from harness.contract.outcome import Diagnosis, Evidence
from harness.contract.outcome import OUTCOMES
from harness.contract.record import Try
from harness.contract.units import GB


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """One try that did not finish."""

    platform: str
    config: str
    arm: str
    repeat: int
    attempt: int
    index: int
    """Try within the attempt."""
    peak_bytes: float | None
    """If memory ran out: what the config needs per rank, which is its peak where it ran, else what the try held."""
    at_least: bool
    """Whether `peak_bytes` is only what it held when it died, so that it needs more."""
    diagnosis: Diagnosis
    collectives: int | None
    """Collectives completed before it died."""
    steps: int | None
    """Steps that any rank had begun when it died."""
    exits: str
    """How the ranks attempt, in short."""
    cured_by: str | None
    """Remedy with which the next try finished."""

    @property
    def outcome(self) -> str:
        """By today's rules."""
        return self.diagnosis.outcome

    @property
    def where(self) -> str:
        """Repeat, attempt and try, in short."""
        return f"r{self.repeat} a{self.attempt} try {self.index}"

    @property
    def needs_gb(self) -> float | None:
        """`peak_bytes` in GB."""
        return None if self.peak_bytes is None else self.peak_bytes / GB

    @property
    def sentence(self) -> str:
        """What happened; the outcome's general sentence where the diagnosis has none of its own."""
        return self.diagnosis.sentence or OUTCOMES[self.outcome].sentence

    @property
    def evidence(self) -> Evidence | None:
        """The strongest line; None where the sentence quotes it already."""
        first = self.diagnosis.evidence[0] if self.diagnosis.evidence else None
        return first if first and first.text != self.diagnosis.sentence else None


class Point(NamedTuple):
    """One config beside a survival line."""

    config: str
    need_bytes: float
    alive: bool
    """Whether it finished without a remedy's help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SurvivalLine:
    """On one platform and arm: the largest peak that ran without a remedy, and the smallest that failed."""

    platform: str
    arm: str
    survivor: str
    survivor_bytes: float
    casualty: str | None
    casualty_bytes: float | None
    at_least: bool
    """Whether `casualty_bytes` is only what the config held when it died. Then the line may lie higher."""
    below: tuple[str, ...]
    """Failed configs that needed no more than the survivor, by measurement."""
    points: tuple[Point, ...]
    """Every config that ran and whose need is known, by need."""
    lasted: tuple[tuple[str, float, int], ...]
    """Casualties by need: config, peak bytes, and how many collectives or steps it lasted."""
    unit: str
    """What `lasted` counts: collectives completed or steps begun."""
    trend: float | None
    """Rank correlation of need and survival time: -1 means that a config dies sooner the farther it is above the
    line."""


def find_deaths(results: Iterable[CellResult], needs: dict[tuple[str, str, str], float]) -> list[Death]:
    """Every try that ended otherwise than `ok`, in table order; attempts by number."""
    found = []
    for result in results:
        for run in result.runs:
            for attempt in run.attempts:
                for index, one in enumerate(attempt.record.tries):
                    diagnosis = _todays(attempt, index)
                    if diagnosis.outcome != "ok":
                        found.append(_death(result, attempt, one, diagnosis, index, needs.get(result.key)))
    return found


def _todays(attempt: Attempt, index: int) -> Diagnosis:
    """Diagnosis of one try: today's rules diagnose the attempt, which ended as its last try did."""
    last = index == len(attempt.record.tries) - 1
    return attempt.diagnosis if last else attempt.record.tries[index].diagnosis


def _death(result: CellResult, attempt: Attempt, one: Try, diagnosis: Diagnosis, index: int, need: float | None) -> Death:
    record = attempt.record
    counts = record.published.get("collectives_before_death")
    count = counts[index] if isinstance(counts, list) and index < len(counts) else None
    later = record.tries[index + 1 :]
    platform, config, arm = result.key
    return Death(
        platform=platform,
        config=config,
        arm=arm,
        repeat=record.spec.identity.repeat,
        attempt=record.spec.identity.attempt,
        index=one.index,
        peak_bytes=(need or held_bytes(one)) if OUTCOMES[diagnosis.outcome].near_gpu_limit else None,
        at_least=result.peak_is_held and need in (None, result.peak()),
        diagnosis=diagnosis,
        collectives=count if isinstance(count, int) else None,
        steps=None if one.last_step is None else one.last_step + 1,
        exits=_exits(one),
        cured_by=next((t.remedy for t in later if t.remedy and t.diagnosis.outcome == "ok"), None),
    )


def _exits(one: Try) -> str:
    words = sorted(e.signal or f"exit {e.exit_code}" for e in one.exits if e.signal or e.exit_code)
    counted = ((word, len(list(group))) for word, group in groupby(words))
    return ", ".join(word if n == 1 else f"{n}x {word}" for word, n in counted)


def memory_needs(results: Iterable[CellResult]) -> dict[tuple[str, str, str], float]:
    """(platform, config, arm) -> peak bytes per rank.

    A cell that never finished borrows the peak of the same config, arm, workload and number of ranks on another
    platform, as memory does not depend on the card's speed. What it held when it died is less than what it needs.
    """
    listed = list(results)
    own = {r.key: peak for r in listed if r.finished and (peak := r.peak())}
    for result in listed:
        spec = result.cell.spec
        if result.key in own or spec is None or spec.platform.device != "cuda":
            continue
        twins = [
            own[t.key]
            for t in listed
            if t.key in own
            and t.cell.spec is not None
            and t.key[1:] == result.key[1:]
            and t.cell.terms == result.cell.terms
            and t.cell.spec.platform.device == "cuda"
            and t.cell.spec.platform.world_size == spec.platform.world_size
        ]
        need = max(min(twins, default=0.0), result.peak() or 0.0)
        if need:
            own[result.key] = need
    return own


def survival_lines(
    results: Iterable[CellResult], deaths: list[Death], needs: dict[tuple[str, str, str], float]
) -> list[SurvivalLine]:
    """One line per platform and arm where something died of memory and something lived."""
    lines = []
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for result in results:
        groups.setdefault((result.key[0], result.key[2]), []).append(result)
    for (platform, arm), group in groups.items():
        killers = [d for d in deaths if (d.platform, d.arm) == (platform, arm) and _of_memory(d)]
        dead = {d.config for d in killers}
        alive = [(needs[r.key], r.key[1]) for r in group if r.finished and r.key[1] not in dead and r.key in needs]
        if killers and alive:
            points = [
                Point(r.key[1], needs[r.key], alive=r.key[1] not in dead and bool(r.finished))
                for r in group
                if r.key in needs and any(run.newest for run in r.runs)
            ]
            lines.append(_line(max(alive), killers, sorted(points, key=lambda point: point.need_bytes)))
    return lines


def _of_memory(death: Death) -> bool:
    return OUTCOMES[death.diagnosis.outcome].near_gpu_limit


def _line(survivor: tuple[float, str], killers: list[Death], points: list[Point]) -> SurvivalLine:
    known = sorted((d.peak_bytes, d.config, d.at_least) for d in killers if d.peak_bytes)
    above = [found for found in known if found[0] > survivor[0]]
    counted = any(d.collectives is not None for d in killers)
    lasted: dict[str, tuple[str, float, int]] = {}
    for death in killers:
        count = death.collectives if counted else death.steps
        if count is not None and death.peak_bytes:
            lasted.setdefault(death.config, (death.config, death.peak_bytes, count))
    ordered = tuple(sorted(lasted.values(), key=lambda item: item[1]))
    return SurvivalLine(
        platform=killers[0].platform,
        arm=killers[0].arm,
        survivor=survivor[1],
        survivor_bytes=survivor[0],
        casualty=above[0][1] if above else None,
        casualty_bytes=above[0][0] if above else None,
        at_least=bool(above) and above[0][2],
        below=tuple(dict.fromkeys(c for peak, c, least in known if peak <= survivor[0] and not least)),
        points=tuple(points),
        lasted=ordered,
        unit="collectives completed" if counted else "steps begun",
        trend=rank_correlation([peak for _, peak, _ in ordered], [count for _, _, count in ordered]),
    )
