"""Clocks, power, temperature and throttling of the GPUs, sampled through NVML beside the run.

The one file that imports pynvml, and only when the platform has GPUs and sampling is on. One line of
telemetry.jsonl per GPU and sample:

    {"at_s": unix time, "gpu": the rank's, "sm_mhz", "mem_mhz", "power_w", "power_limit_w", "temperature_c",
     "utilization_percent", "memory_used_bytes", "throttle": [reasons]}
"""

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.contract.spec import RunSpec
from harness.supervisor.launch import visible_devices

SLOWDOWNS = {
    "SwPowerCap": "power_cap",
    "HwSlowdown": "hw_slowdown",
    "SwThermalSlowdown": "sw_thermal",
    "HwThermalSlowdown": "hw_thermal",
    "HwPowerBrakeSlowdown": "power_brake",
}
"""NVML's clock-event reasons that mean less than full clocks under load; idle and application clocks do not."""
DOUBTFUL = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"})
"""Reasons that flag a cell. A card at its power cap runs as it was built to."""


class Telemetry:
    """Samples while entered; without NVML it does nothing and `available` stays False."""

    def __init__(self, spec: RunSpec, path: Path) -> None:
        self._path = path
        self._devices = visible_devices(spec, os.environ | spec.environment)
        self._wanted = spec.platform.device == "cuda" and spec.protocol.telemetry_hz > 0
        self._interval_s = 1 / spec.protocol.telemetry_hz if self._wanted else 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._throttling: list[tuple[float, str]] = []
        self.available = False

    def __enter__(self) -> "Telemetry":
        if self._wanted:
            with contextlib.suppress(ImportError):
                import pynvml

                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlInit()
                    self.available = True
                    self._thread = threading.Thread(target=self._sample, args=(pynvml,), name="telemetry", daemon=True)
                    self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            # A query to a GPU that fell off the bus may never return: the record must not wait for it.
            self._thread.join(timeout=5)

    def throttled(self, window_s: tuple[float, float] | None) -> bool:
        """Whether any GPU was slowed down for a doubtful reason between two unix times; None: at any time."""
        start, end = window_s or (0.0, float("inf"))
        return any(start <= at_s <= end and reason in DOUBTFUL for at_s, reason in self._throttling)

    def _sample(self, nvml: Any) -> None:
        with open(self._path, "w", encoding="utf-8") as file, contextlib.suppress(OSError):
            handles = self._handles(nvml)
            while not self._stop.is_set():
                now_s = time.time()
                for gpu, handle in handles:
                    sample = {"at_s": round(now_s, 3), "gpu": gpu, **read_gpu(nvml, handle)}
                    self._throttling += [(now_s, reason) for reason in sample["throttle"]]
                    file.write(json.dumps(sample) + "\n")
                file.flush()
                self._stop.wait(self._interval_s)

    def _handles(self, nvml: Any) -> list[tuple[int, Any]]:
        handles = []
        for rank, device in enumerate(self._devices):
            by_index = device.isdigit()
            find = nvml.nvmlDeviceGetHandleByIndex if by_index else nvml.nvmlDeviceGetHandleByUUID
            with contextlib.suppress(nvml.NVMLError):
                handles.append((rank, find(int(device) if by_index else device)))
        return handles


def read_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    """One sample; null for what this card does not report."""
    reasons = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    power_mw = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    limit_mw = _ask(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    busy = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return {
        "sm_mhz": _ask(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        "mem_mhz": _ask(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        "power_w": None if power_mw is None else power_mw / 1000,
        "power_limit_w": None if limit_mw is None else limit_mw / 1000,
        "temperature_c": _ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        "utilization_percent": None if busy is None else busy.gpu,
        "memory_used_bytes": None if memory is None else int(memory.used),
        "throttle": [word for name, word in SLOWDOWNS.items() if reasons & _bit(nvml, name)],
    }


def _bit(nvml: Any, name: str) -> int:
    for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason"):
        if hasattr(nvml, prefix + name):
            return int(getattr(nvml, prefix + name))
    return 0


def _ask(nvml: Any, query: Any, *arguments: Any) -> Any:
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None
