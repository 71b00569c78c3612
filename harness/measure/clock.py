"""The one clock: a window that synchronizes all ranks at its edges and nothing in between."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def barrier(device: torch.device) -> None:
    """Wait for every rank, device work included."""
    synchronize(device)
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    synchronize(device)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Run Python's garbage collector once, then keep it off: its pauses hit ranks at different times.

    Objects alive by then are never collected, which is acceptable: a process times one or two windows only.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Laps:
    """Seconds by part. Each part begins where the one before ends, so the parts add up to the whole."""

    def __init__(self, started_s: float) -> None:
        self._last_s = started_s
        self.seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        """End a part here, where the next begins."""
        now_s = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now_s - self._last_s
        self._last_s = now_s


class StepMarks:
    """Marks between steps: device events on CUDA, read after the window; the host's clock on CPU."""

    def __init__(self, device: torch.device, steps: int) -> None:
        self._cuda = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)] if self._cuda else []
        self._times: list[float] = []
        self._count = 0

    def mark(self) -> None:
        """Mark the boundary between two steps."""
        if self._cuda:
            self._events[self._count].record()
        else:
            self._times.append(time.perf_counter())
        self._count += 1

    def seconds(self) -> list[float]:
        """Seconds between consecutive marks; the device must have been synchronized."""
        if self._cuda:
            used = self._events[: self._count]
            return [a.elapsed_time(b) / 1e3 for a, b in pairwise(used)]
        return [b - a for a, b in pairwise(self._times)]


def timed(device: torch.device, steps: int, step: Callable[[], None]) -> tuple[float, list[float]]:
    """Run `step` that many times between two barriers; returns the window and each step, in seconds."""
    marks = StepMarks(device, steps)
    barrier(device)
    start = time.perf_counter()
    marks.mark()
    for _ in range(steps):
        step()
        marks.mark()
    synchronize(device)
    window_s = time.perf_counter() - start
    barrier(device)
    return window_s, marks.seconds()
