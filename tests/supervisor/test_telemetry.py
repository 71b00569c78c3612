"""GPU telemetry: nothing without NVML, nulls for what a card does not report, throttling by reason and time."""

import types
from pathlib import Path
from typing import Any

import pytest

from harness.measure.nvml import read_gpu
from harness.supervisor.telemetry import Telemetry
from tests.engines.specs import make_spec


def a_card(reasons: int, **absent: bool) -> Any:
    """NVML as a card answers it: `absent` queries are refused, as an L4 refuses some that an A100 answers."""

    class NVMLError(Exception):
        pass

    def answer(name: str, value: Any) -> Any:
        def query(*_: Any) -> Any:
            if absent.get(name):
                raise NVMLError("Not Supported")
            return value

        return query

    return types.SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlClocksEventReasonSwPowerCap=4,
        nvmlClocksThrottleReasonHwSlowdown=8,
        nvmlClocksEventReasonSwThermalSlowdown=32,
        nvmlDeviceGetCurrentClocksEventReasons=answer("reasons", reasons),
        nvmlDeviceGetPowerUsage=answer("power", 301_500),
        nvmlDeviceGetEnforcedPowerLimit=answer("limit", 400_000),
        nvmlDeviceGetUtilizationRates=answer("busy", types.SimpleNamespace(gpu=97)),
        nvmlDeviceGetMemoryInfo=answer("memory", types.SimpleNamespace(used=2**30)),
        nvmlDeviceGetClockInfo=answer("clock", 1410),
        nvmlDeviceGetTemperature=answer("temperature", 61),
    )


def test_a_sample_is_in_plain_units() -> None:
    assert read_gpu(a_card(4 | 32), None) == {
        "sm_mhz": 1410,
        "mem_mhz": 1410,
        "power_w": 301.5,
        "power_limit_w": 400.0,
        "temperature_c": 61,
        "utilization_percent": 97,
        "memory_used_bytes": 2**30,
        "throttle": ["power_cap", "sw_thermal"],
    }


def test_a_figure_the_card_refuses_is_null() -> None:
    sample = read_gpu(a_card(8, power=True, busy=True), None)
    assert sample["power_w"] is None
    assert sample["utilization_percent"] is None
    assert sample["throttle"] == ["hw_slowdown"]


@pytest.mark.parametrize(
    ("window_s", "reasons", "sm_mhz"),
    [
        ((10.0, 20.0), ("hw_thermal", "power_cap"), 1500),
        ((16.0, 20.0), ("power_cap",), 1200),
        (None, ("hw_thermal", "power_cap"), 1500),
        ((30.0, 40.0), (), None),
    ],
)
def test_clocks_and_throttling_are_those_of_the_window(
    tmp_path: Path, window_s: tuple[float, float] | None, reasons: tuple[str, ...], sm_mhz: float | None
) -> None:
    telemetry = Telemetry(make_spec("ddp"), tmp_path / "t.jsonl")
    telemetry._samples += [(15.0, 1800, ["hw_thermal"]), (18.0, 1200, ["power_cap"])]
    assert telemetry.throttle(window_s) == reasons
    assert telemetry.sm_mhz(window_s) == sm_mhz


def test_a_cpu_run_is_not_sampled(tmp_path: Path) -> None:
    with Telemetry(make_spec("ddp"), tmp_path / "t.jsonl") as telemetry:
        assert not telemetry.available
    assert not (tmp_path / "t.jsonl").exists()
