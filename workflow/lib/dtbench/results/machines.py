"""Find which machine measured a run, because a slow host cancels out of a ratio only if it measured both sides.

Two lent or rented machines of one type differ: on two H200s the same launch-bound training ran 1.6x as fast on one
host as on another, while ratios of two configs measured on one host agreed within 10%.
"""

import datetime
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.contract.record import Record

SITTING_GAP_S = 300.0
"""For records that name no boot: after a longer pause between two runs, the machine may be another one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run's number, and what pairs it with another run's."""

    repeat: int
    machine: str | None
    """`m1`, `m2`, ... in order of first use; None: unknown."""
    value: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two cells' numbers under common keys."""

    numerator: Mapping[tuple[str, int], float]
    denominator: Mapping[tuple[str, int], float]
    apart: bool
    """The runs are known to come from different machines only."""

    @property
    def machines(self) -> int | None:
        """Machines that ran a pair; None where runs are paired by repeat."""
        found = {machine for machine, _ in self.numerator if machine}
        return len(found) or None


def machines(records: Mapping[str, Record]) -> dict[str, str]:
    """Key -> machine, for records that say when they ran; those of a cited source do not."""
    timed = {key: r for key, r in records.items() if r.source is None and r.started_at and r.ended_at}
    order = sorted(timed, key=lambda key: (_time(timed[key].started_at), key))
    boots = _boots(order, timed)
    names = {boot: f"m{index}" for index, boot in enumerate(dict.fromkeys(boots[key] for key in order), start=1)}
    return {key: names[boots[key]] for key in order}


def _boots(order: Sequence[str], records: Mapping[str, Record]) -> dict[str, str]:
    """The boot that each record names, or else its session: runs with no long idle time between them."""
    found, sitting, last_s = {}, 0, None
    for key in order:
        record = records[key]
        boot = (record.environment.host if record.environment else {}).get("boot")
        if boot:
            found[key] = str(boot)
            continue
        if last_s is None or _time(record.started_at) - last_s > SITTING_GAP_S:
            sitting += 1
        last_s = max(last_s or 0.0, _time(record.ended_at))
        found[key] = f"sitting {sitting}"
    return found


def _time(text: str | None) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def pair(numerator: Iterable[Sample], denominator: Iterable[Sample]) -> Pairs:
    """Pair two cells' runs on every machine that they share, equal repeats first; without one, by repeat."""
    above, below = list(numerator), list(denominator)
    shared = {s.machine for s in above} & {s.machine for s in below} - {None}
    if not shared:
        known = bool(above and below) and all(s.machine for s in (*above, *below))
        return Pairs(_by_repeat(above), _by_repeat(below), apart=known)
    tops: dict[tuple[str, int], float] = {}
    bottoms: dict[tuple[str, int], float] = {}
    for machine in sorted(m for m in shared if m):
        for index, (top, bottom) in enumerate(_matches(_on(above, machine), _on(below, machine))):
            tops[machine, index], bottoms[machine, index] = top.value, bottom.value
    return Pairs(tops, bottoms, apart=False)


def spread(samples: Iterable[Sample]) -> float | None:
    """How much faster one cell was on its best machine than on its worst, minus 1; None below two known machines."""
    groups: dict[str, list[float]] = {}
    for sample in samples:
        if sample.machine:
            groups.setdefault(sample.machine, []).append(sample.value)
    middles = [statistics.median(values) for values in groups.values()]
    return max(middles) / min(middles) - 1.0 if len(middles) > 1 else None


def _on(samples: Iterable[Sample], machine: str) -> list[Sample]:
    return sorted((s for s in samples if s.machine == machine), key=lambda s: s.repeat)


def _matches(above: list[Sample], below: list[Sample]) -> list[tuple[Sample, Sample]]:
    by_repeat = {s.repeat: s for s in below}
    matched = [(s, by_repeat[s.repeat]) for s in above if s.repeat in by_repeat]
    taken = {s.repeat for s, _ in matched}
    rest = [[s for s in side if s.repeat not in taken] for side in (above, below)]
    return matched + list(zip(*rest, strict=False))


def _by_repeat(samples: Iterable[Sample]) -> dict[tuple[str, int], float]:
    return {("", s.repeat): s.value for s in samples}
