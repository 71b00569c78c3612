"""A probe of the fit frontier: one engine, built once, trains on a ladder of rising sizes until one does not fit.

Each rank keeps frontier-<R>.json up to date, so that its rungs are known even when the process dies:

    {"over": "micro_batch", "rungs": [{"size": 4, "fits": true, "peak_allocated_bytes": ...}], "trying": 8}

The size that does not fit ends the process by its own out-of-memory error, which the supervisor
diagnoses like any other.
"""

import dataclasses
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.contract.frontier import RUNG_STEPS, sized
from harness.contract.heartbeat import HeartbeatWriter
from harness.contract.measured import Memory, RankResult
from harness.engines.base import Context, build_engine
from harness.engines.loop import Hook, Loop
from harness.engines.training import device_name, versions
from harness.measure import clock
from harness.measure.memory import Gauge, release_cached


class Probe:
    """Holds what one rank learns on its way up."""

    def __init__(
        self,
        context: Context,
        heartbeat: HeartbeatWriter,
        gauge: Gauge,
        write: Callable[[Path, object], None],
        folder: Path,
        hook: Hook | None = None,
    ) -> None:
        self._context, self._heartbeat, self._gauge, self._hook = context, heartbeat, gauge, hook
        self._write, self._path = write, folder / f"frontier-{context.rank}.json"
        self._over = context.spec.protocol.ladder_over
        self._rungs: list[dict[str, Any]] = []
        self._memory = Memory()
        self._losses: list[float] = []
        self._norms: list[float | None] = []
        self._step_times_s: list[float] = []
        self._window_s = 0.0

    def run(self) -> RankResult:
        """Try every size of the ladder. Raises the out-of-memory error of the first that does not fit."""
        start = time.perf_counter()
        self._engine = build_engine(self._context)
        clock.barrier(self._context.device)
        gc.enable()
        build_s = time.perf_counter() - start
        for size in self._context.spec.protocol.ladder:
            self._report(trying=size)
            self._try(size)
            self._report(trying=None)
        self._heartbeat.beat(self._next_step, "done")
        return self._result({"build": build_s})

    def _try(self, size: int) -> None:
        release_cached(self._context.device)
        context = dataclasses.replace(self._context, spec=sized(self._context.spec, size))
        loop = Loop(context, self._engine, self._heartbeat, self._gauge.now, self._hook)
        loop.next_step = self._next_step
        loop.tokens.prepare(loop.next_step, RUNG_STEPS)
        self._gauge.open_window()
        # Gradients are not inspected: holding them costs memory and would lower the largest size that fits.
        self._window_s, self._step_times_s = clock.timed(self._context.device, RUNG_STEPS, loop.step)
        self._memory = self._gauge.close_window()
        self._losses += loop.losses()
        self._norms += loop.norms()
        self._rungs.append(
            {
                "size": size,
                "fits": True,
                "peak_allocated_bytes": self._memory.peak_allocated_bytes,
                "peak_reserved_bytes": self._memory.peak_reserved_bytes,
                "alloc_retries": self._memory.alloc_retries,
                "host_rss_peak_bytes": self._memory.host_rss_peak_bytes,
                "step_time_s": self._step_times_s[-1],
            }
        )

    def _report(self, trying: int | None) -> None:
        self._write(self._path, {"over": self._over, "rungs": self._rungs, "trying": trying})

    @property
    def _next_step(self) -> int:
        return RUNG_STEPS * len(self._rungs)

    def _result(self, startup_s: dict[str, float]) -> RankResult:
        return RankResult(
            rank=self._context.rank,
            world_size=self._context.world_size,
            parameters=self._engine.parameters,
            window_s=self._window_s,
            step_times_s=self._step_times_s,
            warmup_step_times_s=[],
            loss=self._losses,
            grad_norm=self._norms,
            memory=self._memory,
            state=None,
            found=self._engine.found(),
            startup_s=startup_s,
            resolved=self._engine.resolved(),
            versions=versions(),
            device_name=device_name(self._context.device),
        )
