"""Samples of clocks, power, temperature and throttling, taken beside a run by a thread of the supervisor.

One line of telemetry.jsonl per GPU and sample, with `harness.measure.nvml.read_gpu`'s keys after these two:

    {"at_s": unix time, "gpu": the rank's, ...}
"""

import json
import os
import statistics
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.contract.spec import RunSpec
from harness.measure.nvml import connect, find_gpu, read_gpu
from harness.supervisor.launch import visible_devices

DOUBTFUL = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"})
"""Throttle reasons that flag a cell. The power cap is not among them, because running at it is normal."""


class Telemetry:
    """Samples while entered; without NVML it does nothing and `available` stays False."""

    def __init__(self, spec: RunSpec, path: Path) -> None:
        self._path = path
        self._devices = visible_devices(spec, os.environ | spec.environment)
        self._wanted = spec.platform.device == "cuda" and spec.protocol.telemetry_hz > 0
        self._interval_s = 1 / spec.protocol.telemetry_hz if self._wanted else 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: list[tuple[float, int | None, list[str]]] = []
        self.available = False

    def __enter__(self) -> "Telemetry":
        if self._wanted and (nvml := connect()) is not None:
            self.available = True
            self._thread = threading.Thread(target=self._sample, args=(nvml,), name="telemetry", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            # A query to a GPU that fell off the bus may never return, and the record must not wait for it.
            self._thread.join(timeout=5)

    def throttle(self, window_s: tuple[float, float] | None) -> tuple[str, ...]:
        """Why any GPU ran below full clocks between two unix times, sorted; None: at any time."""
        return tuple(sorted({reason for _, _, reasons in self._within(window_s) for reason in reasons}))

    def sm_mhz(self, window_s: tuple[float, float] | None) -> float | None:
        """Median clock of the GPUs' multiprocessors between two unix times; None when it was not sampled."""
        clocks = [mhz for _, mhz, _ in self._within(window_s) if mhz is not None]
        return statistics.median(clocks) if clocks else None

    def _within(self, window_s: tuple[float, float] | None) -> list[tuple[float, int | None, list[str]]]:
        start, end = window_s or (0.0, float("inf"))
        return [sample for sample in self._samples if start <= sample[0] <= end]

    def _sample(self, nvml: Any) -> None:
        handles = [(rank, find_gpu(nvml, device)) for rank, device in enumerate(self._devices)]
        with open(self._path, "w", encoding="utf-8") as file, suppress(OSError):
            while not self._stop.is_set():
                now_s = time.time()
                for gpu, handle in handles:
                    if handle is None:
                        continue
                    sample = {"at_s": round(now_s, 3), "gpu": gpu, **read_gpu(nvml, handle)}
                    self._samples.append((now_s, sample["sm_mhz"], sample["throttle"]))
                    file.write(json.dumps(sample) + "\n")
                file.flush()
                self._stop.wait(self._interval_s)
