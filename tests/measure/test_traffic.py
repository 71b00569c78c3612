"""Shares and collectives, from traces small enough to add up by hand."""

from typing import Any

import pytest

from harness.measure.traffic import (
    Collective,
    TrafficError,
    by_kind,
    dispatch_s,
    own_busy_s,
    read_trace,
    straggler_waits,
    summarize,
)

WINDOW = {"ph": "X", "cat": "user_annotation", "name": "harness.profiled_window", "ts": 0, "dur": 100}


def event(category: str, name: str, start: int, end: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "args": arguments}


def test_shares_are_disjoint_and_add_up() -> None:
    timeline = read_trace(
        [
            WINDOW,
            event("kernel", "sm90_gemm", 0, 40),
            event("kernel", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 30, 60),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 50, 70),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 70, 80),
        ]
    )
    figures = summarize(timeline, steps=2)
    shares = figures["shares"]
    assert shares == pytest.approx({"compute": 0.5, "comm_exposed": 0.2, "copy_exposed": 0.1, "idle": 0.2})
    assert sum(shares.values()) == pytest.approx(1)
    assert figures["comm_total_s"] == pytest.approx(15e-6)
    assert figures["overlap"] == pytest.approx(1 - 20 / 30)
    # Published definition: NCCL kernel time over all kernel time, overlapping or not.
    assert figures["nccl_share"] == pytest.approx(30 / (30 + 50))


def test_overlapping_collectives_count_once_as_busy_time() -> None:
    kernels = [event("kernel", "ncclDevKernel_AllGather_RING_LL", start, start + 40) for start in (0, 20)]
    figures = summarize(read_trace([WINDOW, *kernels]), steps=1)
    assert figures["comm_busy_s"] == pytest.approx(60e-6)
    assert figures["comm_total_s"] == pytest.approx(80e-6)


def test_payload_is_read_from_the_kernel() -> None:
    arguments = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16"}
    timeline = read_trace([WINDOW, event("kernel", "ncclDevKernel_AllGather_RING_LL", 0, 8, **arguments)])
    table = by_kind(timeline.collectives, waits=None, steps=1)
    assert table["allgather"]["payload_bytes"] == 80
    assert table["allgather"]["dtypes"] == ["bfloat16"]


def test_a_payload_missing_from_the_trace_is_null() -> None:
    timeline = read_trace([WINDOW, event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 8)])
    assert by_kind(timeline.collectives, None, 1)["allreduce"]["payload_bytes"] is None


def test_a_trace_without_the_window_is_refused() -> None:
    with pytest.raises(TrafficError, match="profiled_window"):
        read_trace([event("kernel", "gemm", 0, 1)])


def collectives(*times: float) -> list[Collective]:
    return [Collective("allreduce", t, None, None) for t in times]


def test_straggler_wait_is_own_minus_the_shortest() -> None:
    own = collectives(5.0, 2.0)
    ranks = [[("allreduce", 5.0), ("allreduce", 2.0)], [("allreduce", 1.0), ("allreduce", 3.0)]]
    assert straggler_waits(own, ranks) == [4.0, 0.0]


def test_different_sequences_have_no_straggler_wait() -> None:
    ranks = [[("allreduce", 5.0)], [("broadcast", 1.0)]]
    assert straggler_waits(collectives(5.0), ranks) is None


def test_busy_time_leaves_out_waiting_for_ranks() -> None:
    timeline = read_trace(
        [
            WINDOW,
            event("kernel", "sm90_gemm", 0, 20),
            event("kernel", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 10, 70),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 65, 80),
        ]
    )
    # This rank came 50 us before the last one: 10 us are the transfer itself.
    assert own_busy_s(timeline, [50e-6], steps=1) == pytest.approx(40e-6)
    assert own_busy_s(timeline, None, steps=1) == pytest.approx(80e-6)
    assert own_busy_s(timeline, [50e-6], steps=2) == pytest.approx(20e-6)


def test_dispatch_time_leaves_out_waits_for_the_device() -> None:
    window = WINDOW | {"dur": 2000}
    timeline = read_trace(
        [
            window,
            event("cuda_runtime", "cudaLaunchKernel", 0, 8),
            event("cuda_runtime", "cudaMalloc", 10, 310),
            # The queue is full: all but 100 us of this launch is a wait.
            event("cuda_driver", "cuLaunchKernelEx", 400, 900),
            event("cuda_runtime", "cudaStreamSynchronize", 1000, 1300),
            event("cuda_runtime", "cudaEventSynchronize", 1200, 1400),
            # Reaches past the window, as the synchronize at its end may.
            event("cuda_runtime", "cudaDeviceSynchronize", 1900, 2100),
        ]
    )
    assert dispatch_s(timeline, steps=1) == pytest.approx((2000 - 400 - 400 - 100) * 1e-6)
    assert dispatch_s(timeline, steps=2) == pytest.approx(550e-6)
