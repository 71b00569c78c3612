"""The profiled pass: where a step's time goes on the device, and what travels between the ranks.

It is apart from the timed pass, because the profiler would falsify the timed numbers. Shares are of the profiled
window. `profile` in a RankResult holds:

    steps, window_s             optimizer steps profiled; seconds from the first to the last, synchronized
    nccl_share                  sum of NCCL kernel time over sum of all kernel time (the published figure)
    comm_total_s                sum of NCCL kernel time per step; waiting for peers is part of it
    comm_busy_s                 time per step with at least one NCCL kernel running
    shares                      {compute, comm_exposed, copy_exposed, idle}: disjoint parts of the window,
                                adding up to 1. Exposed: while no compute kernel runs (copies: and no NCCL)
    overlap                     1 - exposed / busy communication
    collectives                 per kind: count, payload_bytes, time_s, straggler_wait_s, dtypes, per step
    straggler_wait_s            per step, sum over collectives of own time minus the shortest of any rank
    gpu_busy_s                  time per step with any kernel or copy running, without waiting for other ranks: what
                                a step takes on a host that is never late
    dispatch_s                  host time per step without its waits for the device; the profiler makes it longer
    kernel_kinds_s, top_kernels what the compute part is made of (harness.measure.kernels)
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from harness.contract.errors import HarnessError
from harness.measure import clock
from harness.measure.kernels import by_kernel

Interval = tuple[float, float]
"""A half-open stretch of time, in seconds."""
_WINDOW = "harness.profiled_window"
_WAITED_S = 100e-6
"""A call to CUDA takes a few microseconds. A call that takes longer than this waits for a full queue or for a copy to
the host."""
_US = 1e-6
_ELEMENT_BYTES = {
    "float": 4,
    "bfloat16": 2,
    "half": 2,
    "double": 8,
    "int": 4,
    "long": 8,
    "byte": 1,
    "char": 1,
    "bool": 1,
}


class TrafficError(HarnessError):
    """The trace cannot be complete: it lacks something that the run must have done."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One NCCL kernel."""

    kind: str
    duration_s: float
    payload_bytes: int | None
    """The larger of input and output; None when the trace does not say."""
    dtype: str | None


@dataclass(slots=True)
class Timeline:
    """One rank's device activity inside the profiled window, in seconds."""

    window: Interval
    compute: list[Interval] = field(default_factory=list)
    comm: list[Interval] = field(default_factory=list)
    copies: list[Interval] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Of the kernels in `compute`."""
    host_waits: list[Interval] = field(default_factory=list)
    """Stretches in which the host waited for the device, inside calls to CUDA."""


def read_trace(events: Sequence[dict[str, Any]]) -> Timeline:
    """Sort the trace's device events. Raises TrafficError when the window's own mark is missing."""
    marks = [e for e in events if e.get("name") == _WINDOW and e.get("ph") == "X" and e.get("cat") == "user_annotation"]
    if not marks:
        raise TrafficError(f"trace: found no event {_WINDOW!r}, expected the profiled window's mark")
    timeline = Timeline((marks[0]["ts"] * _US, (marks[0]["ts"] + marks[0]["dur"]) * _US))
    on_device = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for event in sorted(on_device, key=lambda e: float(e["ts"])):
        span = (event["ts"] * _US, (event["ts"] + event["dur"]) * _US)
        name = event["name"]
        if event["cat"] == "kernel" and "nccl" in name.lower():
            timeline.comm.append(span)
            timeline.collectives.append(_collective(name, span, event.get("args", {})))
        elif event["cat"] == "gpu_memcpy" and "DtoD" not in name:
            timeline.copies.append(span)
        else:
            timeline.compute.append(span)
            timeline.names.append(name)
    calls = (e for e in events if e.get("ph") == "X" and e.get("cat") in ("cuda_runtime", "cuda_driver"))
    timeline.host_waits = [wait for call in calls if (wait := _host_wait(call)) is not None]
    return timeline


def _host_wait(call: dict[str, Any]) -> Interval | None:
    """The part of a call to CUDA that waits for the device; None for calls that only work on the host."""
    start, end = call["ts"] * _US, (call["ts"] + call["dur"]) * _US
    if "Synchronize" in call["name"]:
        return start, end
    works = any(word in call["name"] for word in ("Malloc", "Alloc", "Free", "Module", "Library"))
    return None if works or end - start <= _WAITED_S else (start + _WAITED_S, end)


def _collective(name: str, span: Interval, arguments: dict[str, Any]) -> Collective:
    kind = arguments.get("Collective name") or _kind_of_kernel(name)
    elements = max(int(arguments.get("In msg nelems", 0)), int(arguments.get("Out msg nelems", 0)))
    dtype = str(arguments["dtype"]).lower() if "dtype" in arguments else None
    known = elements > 0 and dtype in _ELEMENT_BYTES
    return Collective(
        # `_allgather_base` (name of the call) and `AllGather` (name of the kernel) are the same collective.
        kind=str(kind).lower().replace("_base", "").replace("_", ""),
        duration_s=span[1] - span[0],
        payload_bytes=elements * _ELEMENT_BYTES[dtype] if known and dtype is not None else None,
        dtype=dtype,
    )


def _kind_of_kernel(name: str) -> str:
    kinds = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "SendRecv", "Reduce")
    return next((k for k in kinds if k in name), "other")


def summarize(timeline: Timeline, steps: int) -> dict[str, Any]:
    """One rank's figures without the other ranks'."""
    compute, comm, copies = (
        union(clip(part, timeline.window)) for part in (timeline.compute, timeline.comm, timeline.copies)
    )
    window_s = timeline.window[1] - timeline.window[0]
    exposed = length(subtract(comm, compute))
    copy_exposed = length(subtract(copies, union([*compute, *comm])))
    busy = length(union([*compute, *comm, *copies]))
    comm_total_s = sum(end - start for start, end in timeline.comm)
    kernels_s = comm_total_s + sum(end - start for start, end in timeline.compute)
    return {
        "steps": steps,
        "window_s": window_s,
        "nccl_share": comm_total_s / kernels_s if kernels_s else None,
        "comm_total_s": comm_total_s / steps,
        "comm_busy_s": length(comm) / steps,
        "shares": {
            "compute": length(compute) / window_s,
            "comm_exposed": exposed / window_s,
            "copy_exposed": copy_exposed / window_s,
            "idle": (window_s - busy) / window_s,
        },
        "overlap": 1 - exposed / length(comm) if comm else None,
        **by_kernel(
            [(name, end - start) for name, (start, end) in zip(timeline.names, timeline.compute, strict=True)], steps
        ),
    }


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as sorted, disjoint intervals; empty ones vanish."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(merged: list[Interval]) -> float:
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in merged)


def subtract(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """Points of `left` outside `right`; both as `union` returns them."""
    rest: list[Interval] = []
    position = 0
    for start, end in left:
        while position < len(right) and right[position][1] <= start:
            position += 1
        cursor, index = start, position
        while index < len(right) and right[index][0] < end:
            if right[index][0] > cursor:
                rest.append((cursor, right[index][0]))
            cursor = max(cursor, right[index][1])
            index += 1
        if cursor < end:
            rest.append((cursor, end))
    return rest


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts that lie inside the window, not merged."""
    inside = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in inside if end > start]


def own_busy_s(timeline: Timeline, waits: Sequence[float] | None, steps: int) -> float:
    """Seconds per step with any kernel or copy running, collectives counted from the last rank's arrival.

    Without `waits`, because the ranks' sequences differ, waiting counts as busy and the figure is an upper bound.
    """
    late = waits if waits is not None else [0.0] * len(timeline.comm)
    sent = [(start + wait, end) for (start, end), wait in zip(timeline.comm, late, strict=True)]
    return length(union(clip([*timeline.compute, *sent, *timeline.copies], timeline.window))) / steps


def dispatch_s(timeline: Timeline, steps: int) -> float:
    """Host seconds per step, waits for the device left out."""
    start, end = timeline.window
    return (end - start - length(union(clip(timeline.host_waits, timeline.window)))) / steps


def straggler_waits(own: Sequence[Collective], everyone: Sequence[Sequence[tuple[str, float]]]) -> list[float] | None:
    """Own time minus the shortest of any rank, for each collective; None when the ranks' sequences differ."""
    kinds = [[kind for kind, _ in other] for other in everyone]
    if any(k != kinds[0] for k in kinds) or len(kinds[0]) != len(own):
        return None
    shortest = [min(times) for times in zip(*([t for _, t in other] for other in everyone), strict=True)]
    return [c.duration_s - least for c, least in zip(own, shortest, strict=True)]


def by_kind(collectives: Sequence[Collective], waits: Sequence[float] | None, steps: int) -> dict[str, Any]:
    """Count, payload, time and straggler wait of each kind of collective, per step."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, collective in enumerate(collectives):
        groups[collective.kind].append(index)
    table = {}
    for kind, indices in groups.items():
        members = [collectives[i] for i in indices]
        sizes = [c.payload_bytes for c in members if c.payload_bytes is not None]
        table[kind] = {
            "count": len(members) / steps,
            "payload_bytes": sum(sizes) / steps if len(sizes) == len(members) else None,
            "time_s": sum(c.duration_s for c in members) / steps,
            "straggler_wait_s": sum(waits[i] for i in indices) / steps if waits is not None else None,
            "dtypes": sorted({c.dtype for c in members if c.dtype}),
        }
    return table


def profiled_pass(device: torch.device, world_size: int, steps: int, step: Callable[[], None]) -> dict[str, Any]:
    """Profile that many steps on a CUDA device. Raises TrafficError when a distributed run shows no NCCL kernel."""
    clock.barrier(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        # The first profiled step pays for the profiler's own start.
        step()
        clock.barrier(device)
        with record_function(_WINDOW):
            for _ in range(steps):
                step()
            clock.synchronize(device)
    clock.barrier(device)
    # A trace of ZeRO-3 holds half a million objects: the collector would walk them again and again while they grow.
    with tempfile.TemporaryDirectory() as folder, clock.collector_paused():
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        timeline = read_trace(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])
    _keep_window(timeline)
    if world_size > 1 and not timeline.collectives:
        raise TrafficError(
            f"profile: found no NCCL kernel in {steps} steps of a run over {world_size} ranks, "
            "expected at least one per step; the trace is incomplete or kernels were renamed"
        )
    everyone: list[Any] = [None] * world_size
    dist.all_gather_object(everyone, [(c.kind, c.duration_s) for c in timeline.collectives])
    waits = straggler_waits(timeline.collectives, everyone)
    return summarize(timeline, steps) | {
        "collectives": by_kind(timeline.collectives, waits, steps),
        "straggler_wait_s": sum(waits) / steps if waits is not None else None,
        "gpu_busy_s": own_busy_s(timeline, waits, steps),
        "dispatch_s": dispatch_s(timeline, steps),
    }


def _keep_window(timeline: Timeline) -> None:
    start, end = timeline.window
    kept = [i for i, span in enumerate(timeline.comm) if start <= span[0] < end]
    timeline.collectives = [timeline.collectives[i] for i in kept]
    timeline.names = [
        name for name, span in zip(timeline.names, timeline.compute, strict=True) if start <= span[0] < end
    ]
    for name in ("comm", "compute", "copies"):
        setattr(timeline, name, [s for s in getattr(timeline, name) if start <= s[0] < end])
