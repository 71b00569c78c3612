"""The numbers of one record, each by a reader that returns None where the record does not have it."""

import functools
import math
from collections.abc import Callable
from typing import Any

from harness.contract.measured import Memory
from harness.contract.record import Record, Try
from harness.diagnosis.memory import read_shortage

SECONDS_PER_HOUR = 3600
TOKENS_PER_UNIT = 1_000_000

Value = Callable[[Record], float | None]


def number(plain: Any, *path: str) -> float | None:
    """The finite number at this path of an untyped part of a record; None if there is none or it is anything else."""
    for name in path:
        plain = plain.get(name) if isinstance(plain, dict) else None
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        return None
    try:
        return float(plain) if math.isfinite(plain) else None
    except OverflowError:
        return None


def step_time_s(record: Record) -> float | None:
    """The window over its steps; a cited source may give only the median of the steps."""
    m = record.measured
    return None if m is None else (m.step_time_s if m.step_time_s is not None else m.step_time_p50_s)


def tokens_per_s(record: Record) -> float | None:
    """Tokens of all ranks per second; None for a probe of the fit frontier, whose steps differ in size."""
    return record.measured.tokens_per_s if record.measured and not record.spec.protocol.ladder else None


def peak_bytes(record: Record) -> float | None:
    """Peak of the fullest rank: the allocator's on a GPU, resident memory on a CPU; for a dead run, what it held."""
    memory = record.measured.memory if record.measured else None
    if memory is not None:
        return _peak(memory, record.spec.platform.device)
    return max((held for t in record.tries if (held := held_bytes(t))), default=None)


def held_bytes(one: Try) -> float | None:
    """The most that a dead try is known to have held, by a rank's last heartbeat or the allocator's last message.

    Heartbeats come when a phase begins, so a try that died inside a phase held more than its last one says.
    """
    told = [read_shortage(evidence.text).allocated for evidence in one.diagnosis.evidence]
    return max((held for held in [one.peak_allocated_bytes, *told] if held), default=None)


def _peak(memory: Memory, device: str) -> float | None:
    return memory.peak_allocated_bytes if device == "cuda" else memory.host_rss_peak_bytes


def reserved_bytes(record: Record) -> float | None:
    """What the allocator held at its peak."""
    return record.measured.memory.peak_reserved_bytes if record.measured and record.measured.memory else None


def state_bytes_per_parameter(record: Record) -> float | None:
    """Parameters, gradients and optimizer of the fullest rank over the model's parameters."""
    return record.measured.state.bytes_per_parameter if record.measured and record.measured.state else None


def last_loss(record: Record) -> float | None:
    """Loss after the last step."""
    return record.measured.loss[-1] if record.measured and record.measured.loss else None


@functools.cache
def profile_value(name: str) -> Value:
    """Reader of a number of the profiled pass, by dotted name; a cited source may give it under the same name."""

    def read(record: Record) -> float | None:
        return number((record.measured.profile if record.measured else None) or record.published, *name.split("."))

    return read


def profiled_step_s(record: Record) -> float | None:
    """A step of the profiled pass; profiling takes host time, so a step that waits for the host is longer there."""
    window_s, steps = profile_value("window_s")(record), profile_value("steps")(record)
    return window_s / steps if window_s and steps else None


@functools.cache
def timed_share(name: str) -> Value:
    """Reader of a share of the profiled step as a share of the timed one: compute kernels take as long in both.

    A kernel that waits for another rank may be shorter in the timed pass, so `idle`, the rest, is a lower bound.
    """

    def read(record: Record) -> float | None:
        profiled_s, timed_s = profiled_step_s(record), step_time_s(record)
        share = profile_value(f"shares.{name}")(record)
        if profiled_s is None or timed_s is None or share is None:
            return None
        busy = (1 - share if name == "idle" else share) * profiled_s / timed_s
        return max(0.0, 1 - busy) if name == "idle" else min(1.0, busy)

    return read


def gpu_busy_s(record: Record) -> float | None:
    """What a step keeps the GPU busy; in records that do not say it, waiting for other ranks counts as busy too."""
    if record.measured and record.measured.gpu_busy_s is not None:
        return record.measured.gpu_busy_s
    profiled_s, idle = profiled_step_s(record), profile_value("shares.idle")(record)
    return None if profiled_s is None or idle is None else profiled_s * (1 - idle)


def host_gap(record: Record) -> float | None:
    """How much longer a timed step is than the GPU is busy in it, as a share of the latter."""
    step_s, busy_s = step_time_s(record), gpu_busy_s(record)
    return step_s / busy_s - 1 if step_s and busy_s else None


def gpu_tokens_per_s(record: Record) -> float | None:
    """Tokens per second that the GPU is busy: no host and, unlike `tokens_per_s`, no other rank is waited for."""
    known = record.measured is not None and (
        record.measured.gpu_busy_s is not None or record.spec.platform.world_size == 1
    )
    busy_s = gpu_busy_s(record) if known else None
    return record.spec.tokens_per_step / busy_s if busy_s else None


def dispatch_s(record: Record) -> float | None:
    """Host time of a profiled step, waits for the device left out."""
    return record.measured.dispatch_s if record.measured else None


def joules_per_token(record: Record) -> float | None:
    """What all GPUs used in the timed window, per token; None for records older than that measurement."""
    m, steps = record.measured, record.spec.protocol.timed_steps
    return m.energy_j / (m.tokens_per_step * steps) if m and m.energy_j is not None and m.tokens_per_step else None


def watts_per_gpu(record: Record) -> float | None:
    """Mean power of a GPU over the timed window."""
    joules, speed = joules_per_token(record), tokens_per_s(record)
    return None if joules is None or speed is None else joules * speed / record.spec.platform.world_size


def sm_mhz(record: Record) -> float | None:
    """Median clock of the multiprocessors in the timed window."""
    return record.measured.sm_mhz if record.measured else None


def gpu_hours_per_million_tokens(record: Record) -> float | None:
    """GPUs times hours for a million tokens: the cost where no price is known. None on a CPU."""
    speed = tokens_per_s(record) if record.spec.platform.device == "cuda" else None
    hours = TOKENS_PER_UNIT / (speed * SECONDS_PER_HOUR) if speed else None
    return None if hours is None else hours * record.spec.platform.world_size


nccl_share = profile_value("nccl_share")
"""Sum of NCCL kernel time over sum of kernel time: the published definition."""


def nccl_waiting(record: Record) -> float | None:
    """The part of NCCL's kernel time in which a rank waited for the last one to arrive; None where ranks cannot be
    compared."""
    total_s, waited_s = profile_value("comm_total_s")(record), profile_value("straggler_wait_s")(record)
    return waited_s / total_s if total_s and waited_s is not None else None


def mfu(record: Record) -> float | None:
    """Model FLOP utilization, attention counted in full."""
    return record.measured.mfu if record.measured else None
