"""Merge the results of all ranks into the run's numbers, or into the rungs that a frontier's probe reached."""

import json
import math
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from harness.contract.codec import decode, decode_file
from harness.contract.errors import SpecError
from harness.contract.frontier import Rung
from harness.contract.heartbeat import Heartbeat, RankExit, read_heartbeat
from harness.contract.measured import Measured, Memory, RankResult, State
from harness.contract.outcome import OUTCOMES, Diagnosis
from harness.contract.spec import RunSpec
from harness.diagnosis.memory import read_shortage
from harness.measure.flops import utilization
from harness.supervisor.telemetry import DOUBTFUL

T = TypeVar("T")
UNSTABLE_P95_OVER_P50 = 1.5
"""A timed window is flagged `unstable` when its slow steps take this much longer than its median step."""


def read_results(folder: Path, world_size: int) -> list[RankResult]:
    """Results of all ranks in order of rank; empty unless every rank left a valid one."""
    try:
        return [decode_file(RankResult, folder / f"result-{rank}.json") for rank in range(world_size)]
    except SpecError:
        return []


def read_exits(folder: Path, world_size: int) -> tuple[RankExit, ...]:
    """How each rank's process ended, as its wrapper reported it; nulls where the wrapper reported nothing."""
    ranks = range(world_size)
    return tuple(_read_exit(folder / f"exit-{rank}.json") or RankExit(rank=rank, exit_code=None) for rank in ranks)


def _read_exit(path: Path) -> RankExit | None:
    try:
        return decode(RankExit, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, SpecError):
        return None


def percentile(values: Iterable[float], share: float) -> float | None:
    """Nearest-rank percentile: the smallest value with at least `share` of all values at or below it."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def merge(
    results: list[RankResult], spec: RunSpec, throttle: tuple[str, ...] = (), sm_mhz: float | None = None
) -> Measured:
    """The run's numbers: a step takes as long as on its slowest rank, and the peak is the fullest rank's."""
    first = results[0]
    step_time_s = max(r.window_s for r in results) / spec.protocol.timed_steps
    step_times_s = _columns((r.step_times_s for r in results), max)
    tokens_per_s = spec.tokens_per_step / step_time_s
    per_gpu = tokens_per_s / spec.platform.world_size
    utilized = partial(utilization, spec.model.config, spec.data.sequence_length, per_gpu, spec.platform.accelerator)
    return Measured(
        parameters=first.parameters,
        step_time_s=step_time_s,
        step_time_p50_s=statistics.median(step_times_s) if step_times_s else None,
        step_time_p95_s=percentile(step_times_s, 0.95),
        step_times_s=step_times_s,
        warmup_step_times_s=_columns((r.warmup_step_times_s for r in results), max),
        gpu_busy_s=_most(results, "gpu_busy_s"),
        dispatch_s=_most(results, "dispatch_s"),
        tokens_per_step=spec.tokens_per_step,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=per_gpu,
        energy_j=None if any(r.energy_j is None for r in results) else sum(r.energy_j or 0.0 for r in results),
        sm_mhz=sm_mhz,
        throttle=throttle,
        loss=_columns((r.loss for r in results), statistics.fmean),
        grad_norm=_columns((r.grad_norm for r in results), _first_known),
        moved=first.moved,
        outputs=first.outputs,
        compiled_share=min((r.compiled_share for r in results if r.compiled_share is not None), default=None),
        busiest_experts=first.busiest_experts,
        loading=_loading([r.loading for r in results if r.loading]),
        memory=fullest([r.memory for r in results]),
        memory_by_rank=[r.memory for r in results],
        state=max((r.state for r in results if r.state), key=_state_bytes, default=None),
        found=first.found,
        # Take all parts from one rank, so that they add up to a time that a rank really took.
        startup_s=max((r.startup_s for r in results), key=lambda parts: sum(parts.values())),
        mfu=utilized(causal=False),
        mfu_causal=utilized(causal=True),
        flags=flags(results, spec, step_times_s, bool(DOUBTFUL & set(throttle))),
        profile=merge_profiles([r.profile for r in results if r.profile]),
        preflight=merge_preflights([r.preflight for r in results if r.preflight], spec.platform.ranks_per_node),
        ledger=first.ledger,
    )


def _loading(ranks: list[dict[str, float]]) -> dict[str, float]:
    """The rank that read longest, with the highest peak of host memory of any."""
    if not ranks:
        return {}
    longest = max(ranks, key=lambda rank: rank["download_s"] + rank["read_s"])
    return longest | {"host_peak_bytes": max(rank["host_peak_bytes"] for rank in ranks)}


def fullest(memories: list[Memory]) -> Memory:
    """Maximum over ranks, figure by figure; the peak's phase is that of the rank with the highest peak."""
    top = max(memories, key=lambda m: m.peak_allocated_bytes or 0)
    figures: dict[str, Any] = {"peak_phase": top.peak_phase}
    for field in structs.fields(Memory):
        if field.name != "peak_phase":
            known = [v for v in (getattr(m, field.name) for m in memories) if v is not None]
            figures[field.name] = max(known, default=None)
    return Memory(**figures)


def _most(results: list[RankResult], name: str) -> float | None:
    """Maximum over ranks of a number of the profiled pass; None unless every rank has it."""
    found = [(r.profile or {}).get(name) for r in results]
    return None if any(value is None for value in found) else max(float(value or 0.0) for value in found)


def merge_profiles(profiles: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Mean over ranks of every number of the profiled pass. Shares are kept for each rank; what is not a number is rank
    0's."""
    if not profiles:
        return None
    kept = ("nccl_share", "shares", "straggler_wait_s", "gpu_busy_s", "dispatch_s", "error")
    by_rank = [{key: profile[key] for key in kept if key in profile} for profile in profiles]
    merged: dict[str, Any] = _mean(profiles)
    return merged | {"by_rank": by_rank}


def merge_preflights(preflights: list[dict[str, Any]], ranks_per_node: int) -> dict[str, Any] | None:
    """Rank 0's preflight, with every rank's matmul peak and the bus bandwidth inside each of several nodes.

    So one slow card or node of several is seen.
    """
    if not preflights:
        return None
    merged = preflights[0] | {"matmul_flops_per_s_by_rank": [p["matmul"]["flops_per_s"] for p in preflights]}
    if merged.pop("node_all_reduce", None):
        by_node = [p["node_all_reduce"]["bus_bytes_per_s"] for p in preflights[::ranks_per_node]]
        merged["bus_bytes_per_s_by_node"] = by_node
    return merged


def flags(results: list[RankResult], spec: RunSpec, step_times_s: list[float], throttled: bool) -> tuple[str, ...]:
    """Flags that make the numbers doubtful, in the order of the tables."""
    p50, p95 = percentile(step_times_s, 0.5), percentile(step_times_s, 0.95)
    wanted = spec.protocol.profiled_steps > 0 and spec.platform.device == "cuda"
    profiled = all(r.profile is not None and not r.profile.get("error") for r in results)
    found = {
        "faults": bool(spec.faults),
        "alloc_retries": any(r.memory.alloc_retries for r in results),
        "throttled": throttled,
        "unstable": bool(p50 and p95 and p95 > UNSTABLE_P95_OVER_P50 * p50),
        "profile_failed": wanted and not profiled,
        "compile_incomplete": any(r.compiled_share is not None and r.compiled_share < 1 for r in results),
    }
    return tuple(name for name, holds in found.items() if holds)


def not_finite(results: list[RankResult]) -> tuple[int, int] | None:
    """(rank, step) of the first loss or gradient norm that is not a finite number; None when all are."""
    for result in results:
        for numbers in (result.loss, result.grad_norm):
            for step, number in enumerate(numbers):
                if number is not None and not math.isfinite(number):
                    return result.rank, step
    return None


def read_rungs(place: Path, spec: RunSpec, diagnosis: Diagnosis) -> tuple[Rung, ...]:
    """Merge frontier-<R>.json of all ranks in a try's folder: a size fits when it fits on every rank."""
    ranks = [_read_rungs(place / f"frontier-{rank}.json") for rank in range(spec.platform.world_size)]
    fitting = [_merge_rung(size, ranks) for size in spec.protocol.ladder if all(size in rungs for rungs, _ in ranks)]
    if diagnosis.outcome == "ok":
        return tuple(fitting)
    done = {rung.size for rung in fitting}
    begun = {trying for _, trying in ranks if trying} | {size for rungs, _ in ranks for size in rungs}
    # No size was begun: the model itself did not fit, so the first size does not fit either.
    open_sizes = sorted(begun - done) or [size for size in spec.protocol.ladder if size not in done][:1]
    return (*fitting, *(_last_rung(size, place, diagnosis) for size in open_sizes[:1]))


def measured_ladder(results: list[RankResult], rungs: Iterable[Rung]) -> Measured:
    """The numbers of a probe: its rungs, without a speed, because no size was measured in full."""
    first = results[0] if results else None
    if first is None:
        return Measured(frontier=tuple(rungs))
    return Measured(
        parameters=first.parameters,
        memory=fullest([r.memory for r in results]),
        memory_by_rank=[r.memory for r in results],
        found=first.found,
        startup_s={part: max(r.startup_s.get(part, 0.0) for r in results) for part in first.startup_s},
        frontier=tuple(rungs),
    )


def _mean(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _mean([v[key] for v in values if isinstance(v, dict) and key in v]) for key in first}
    if isinstance(first, int | float) and not isinstance(first, bool):
        numbers = [v for v in values if isinstance(v, int | float)]
        return statistics.fmean(numbers) if any(n != first for n in numbers) else first
    return first


def _columns(rows: Iterable[list[T]], reduce: Callable[[list[T]], T]) -> list[T]:
    return [reduce(list(column)) for column in zip(*rows, strict=False)]


def _first_known(values: list[float | None]) -> float | None:
    return next((v for v in values if v is not None and math.isfinite(v)), None)


def _state_bytes(state: State) -> int:
    return state.parameter_bytes + state.gradient_bytes + state.optimizer_bytes


def _read_rungs(path: Path) -> tuple[dict[int, dict[str, Any]], int | None]:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return {rung["size"]: rung for rung in plain["rungs"]}, plain["trying"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, None


def _merge_rung(size: int, ranks: list[tuple[dict[int, dict[str, Any]], int | None]]) -> Rung:
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


def _last_rung(size: int, place: Path, diagnosis: Diagnosis) -> Rung:
    asked = (read_shortage(line.text).asked for line in diagnosis.evidence)
    beat = _last_beat(place, diagnosis.culprit_rank)
    return Rung(
        size=size,
        fits=False if OUTCOMES[diagnosis.outcome].does_not_fit else None,
        outcome=diagnosis.outcome,
        rank=diagnosis.culprit_rank,
        phase=beat.phase if beat else None,
        asked_bytes=next((number for number in asked if number is not None), None),
    )


def _last_beat(place: Path, rank: int | None) -> Heartbeat | None:
    beats = [b for path in sorted(place.glob("heartbeat-*.json")) if (b := read_heartbeat(path)) is not None]
    return next((b for b in beats if b.rank == rank), min(beats, key=lambda b: b.step, default=None))
