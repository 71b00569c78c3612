"""What the driver reports about the GPUs: clocks, power, temperature, throttling and energy.

The one file that imports pynvml. Without it, or without a driver, `connect` returns None.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

SLOWDOWNS = {
    "SwPowerCap": "power_cap",
    "HwSlowdown": "hw_slowdown",
    "SwThermalSlowdown": "sw_thermal",
    "HwThermalSlowdown": "hw_thermal",
    "HwPowerBrakeSlowdown": "power_brake",
}
"""NVML's clock-event reasons that mean reduced clocks under load. Idle and application clocks are not among them."""


def connect() -> Any:
    """The initialized pynvml module; None where there is no pynvml or no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def find_gpu(nvml: Any, device: str) -> Any:
    """The handle of a GPU by its index or UUID; None when NVML does not know it."""
    find = nvml.nvmlDeviceGetHandleByIndex if device.isdigit() else nvml.nvmlDeviceGetHandleByUUID
    with contextlib.suppress(nvml.NVMLError):
        return find(int(device) if device.isdigit() else device)
    return None


def list_gpus() -> list[dict[str, Any]]:
    """Name, UUID, total bytes and whether NVLink is up, of every GPU that CUDA_VISIBLE_DEVICES shows."""
    nvml = connect()
    if nvml is None:
        return []
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = [str(i) for i in range(nvml.nvmlDeviceGetCount())] if shown is None else shown.split(",")
    handles = (find_gpu(nvml, word.strip()) for word in words if word.strip())
    return [
        {
            "name": _ask(nvml, nvml.nvmlDeviceGetName, handle) or "GPU",
            "uuid": _ask(nvml, nvml.nvmlDeviceGetUUID, handle),
            "total_bytes": getattr(_ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle), "total", None),
            "nvlink": any(
                _ask(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)
            ),
        }
        for handle in handles
        if handle is not None
    ]


def meter(uuid: str | None) -> Callable[[], float | None]:
    """Reads the joules a GPU has used since its driver was loaded.

    The reading is None without a UUID (a CPU), without NVML, and for a card without a counter (before Volta).
    """
    nvml = connect() if uuid is not None else None
    handle = find_gpu(nvml, uuid) if nvml is not None and uuid is not None else None

    def read_j() -> float | None:
        if nvml is None or handle is None:
            return None
        energy_mj = _ask(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return None if energy_mj is None else energy_mj / 1000

    return read_j


def read_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    """One sample of a GPU; null for what this card does not report."""
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
    # NVML renamed its throttle reasons to event reasons; which names exist depends on the pynvml version.
    for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason"):
        if hasattr(nvml, prefix + name):
            return int(getattr(nvml, prefix + name))
    return 0


def _ask(nvml: Any, query: Any, *arguments: Any) -> Any:
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None
