"""The rungs that a probe reached, merged over its ranks, and the size that ended it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.contract.diagnosis import Diagnosis
from harness.contract.frontier import OUT_OF_MEMORY, Rung
from harness.contract.heartbeat import Heartbeat, read_heartbeat
from harness.contract.measured import Measured, RankResult
from harness.contract.spec import RunSpec
from harness.diagnosis.memory import read_shortage
from harness.supervisor.collect import fullest


def read_rungs(place: Path, spec: RunSpec, diagnosis: Diagnosis) -> tuple[Rung, ...]:
    """Merge frontier-<R>.json of all ranks in a try's folder: a size fits when it fits on every rank."""
    ranks = [_read(place / f"frontier-{rank}.json") for rank in range(spec.platform.world_size)]
    fitting = [_merge(size, ranks) for size in spec.protocol.ladder if all(size in rungs for rungs, _ in ranks)]
    if diagnosis.outcome == "ok":
        return tuple(fitting)
    done = {rung.size for rung in fitting}
    begun = {trying for _, trying in ranks if trying} | {size for rungs, _ in ranks for size in rungs}
    # Nothing begun: the model itself was too much, and so is the first size with it.
    open_sizes = sorted(begun - done) or [size for size in spec.protocol.ladder if size not in done][:1]
    return (*fitting, *(_end(size, place, diagnosis) for size in open_sizes[:1]))


def measured_ladder(results: list[RankResult], rungs: Iterable[Rung]) -> Measured:
    """The numbers of a probe: its rungs, and no speed, since no size was measured in full."""
    first = results[0] if results else None
    plain = [rung_json(rung) for rung in rungs]
    if first is None:
        return Measured(frontier=plain)
    return Measured(
        parameters=first.parameters,
        memory=fullest([r.memory for r in results]),
        memory_by_rank=[r.memory for r in results],
        found=first.found,
        startup_s={part: max(r.startup_s.get(part, 0.0) for r in results) for part in first.startup_s},
        frontier=plain,
    )


def rung_json(rung: Rung) -> dict[str, Any]:
    """A rung as the record carries it: without what is not known."""
    return {name: value for name in Rung.__slots__ if (value := getattr(rung, name)) is not None or name == "fits"}


def _read(path: Path) -> tuple[dict[int, dict[str, Any]], int | None]:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return {rung["size"]: rung for rung in plain["rungs"]}, plain["trying"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, None


def _merge(size: int, ranks: list[tuple[dict[int, dict[str, Any]], int | None]]) -> Rung:
    def most(name: str) -> Any:
        return max((v for rungs, _ in ranks if (v := rungs[size].get(name)) is not None), default=None)

    return Rung(
        size=size,
        fits=True,
        peak_allocated_bytes=most("peak_allocated_bytes"),
        peak_reserved_bytes=most("peak_reserved_bytes"),
        alloc_retries=most("alloc_retries"),
        host_rss_peak_bytes=most("host_rss_peak_bytes"),
        step_time_s=most("step_time_s"),
    )


def _end(size: int, place: Path, diagnosis: Diagnosis) -> Rung:
    asked = (read_shortage(line.text).asked for line in diagnosis.evidence)
    beat = _last_beat(place, diagnosis.culprit_rank)
    return Rung(
        size=size,
        fits=False if diagnosis.outcome in OUT_OF_MEMORY else None,
        outcome=diagnosis.outcome,
        rank=diagnosis.culprit_rank,
        phase=beat.phase if beat else None,
        asked_bytes=next((number for number in asked if number is not None), None),
    )


def _last_beat(place: Path, rank: int | None) -> Heartbeat | None:
    beats = [b for path in sorted(place.glob("heartbeat-*.json")) if (b := read_heartbeat(path)) is not None]
    return next((b for b in beats if b.rank == rank), min(beats, key=lambda b: b.step, default=None))
