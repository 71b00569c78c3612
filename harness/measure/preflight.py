"""Checks of two or three seconds before a run: are the devices free, and how fast are devices, links and host?"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from harness.contract.platform import Platform
from harness.contract.units import MIB
from harness.measure import clock

_BUDGET_S = 0.8
_DISPATCH_ROUNDS = 10
_DISPATCH_CALLS = 500
IDLE_LIMIT_BYTES = 1024 * MIB
"""If others use more than this before the run, the device was not idle. A CUDA context alone takes about half of it."""


def preflight(device: torch.device, platform: Platform) -> dict[str, Any]:
    """Measure this rank's device and the link to its peers; every rank must call it at the same time."""
    report: dict[str, Any] = {"device_idle": None, "used_before_bytes": None, "peer_access": None}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        used = total - free - torch.cuda.memory_reserved(device)
        report |= {
            "used_before_bytes": used,
            "device_idle": used <= IDLE_LIMIT_BYTES,
            "peer_access": [
                torch.cuda.can_device_access_peer(device.index, other)
                for other in range(torch.cuda.device_count())
                if other != device.index
            ],
        }
    report["matmul"] = matmul_peak(device)
    report["dispatch"] = dispatch_time(device)
    report["all_reduce"] = all_reduce_bandwidth(device) if platform.world_size > 1 else None
    if platform.nodes > 1 and platform.ranks_per_node > 1:
        # Ranks of one node follow each other. NCCL holds memory for a group, so it must not outlive the probe.
        node, _ = dist.new_subgroups(platform.ranks_per_node)
        report["node_all_reduce"] = all_reduce_bandwidth(device, node)
        dist.destroy_process_group(node)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return report


def _seconds_per_call(device: torch.device, call: Callable[[], object], calls: int) -> float:
    clock.synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    clock.synchronize(device)
    return (time.perf_counter() - start) / calls


def matmul_peak(device: torch.device) -> dict[str, Any]:
    """Square matrix product: FLOP/s of the best of several rounds, 2 n^3 FLOPs each."""
    cuda = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if cuda else (512, torch.float32)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)

    def multiply() -> None:
        torch.mm(left, right, out=out)

    _seconds_per_call(device, multiply, 3)
    deadline, best = time.perf_counter() + _BUDGET_S, float("inf")
    while time.perf_counter() < deadline:
        best = min(best, _seconds_per_call(device, multiply, 10))
    return {"size": size, "dtype": str(dtype).removeprefix("torch."), "flops_per_s": 2 * size**3 / best}


def dispatch_time(device: torch.device) -> dict[str, Any]:
    """Host time of one small PyTorch operator, in seconds; a launch-bound step consists of such times. The best of
    several rounds. On a CUDA device the kernels wait in a queue, and a round is too short to fill it.
    """
    small = torch.zeros(1, device=device)
    best = float("inf")
    for _ in range(_DISPATCH_ROUNDS):
        clock.synchronize(device)
        start = time.perf_counter()
        for _ in range(_DISPATCH_CALLS):
            small.add_(1.0)
        best = min(best, time.perf_counter() - start)
    clock.synchronize(device)
    return {"calls": _DISPATCH_CALLS, "s_per_call": best / _DISPATCH_CALLS}


def all_reduce_bandwidth(device: torch.device, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Bus bandwidth of a large all-reduce over a group, as nccl-tests define it: bytes / time * 2 (W - 1) / W.

    Over all ranks of several nodes it is the bandwidth of the slowest link between nodes.
    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    ranks = dist.get_world_size(group)
    cuda = device.type == "cuda"
    message_bytes = (256 if cuda else 8) * MIB
    message = torch.ones(message_bytes // 4, dtype=torch.float32, device=device)

    def reduce() -> None:
        dist.all_reduce(message, group=group)

    clock.barrier(device)
    warm = torch.tensor([_seconds_per_call(device, reduce, 2)], device=device)
    # The ranks must agree on how often they call.
    dist.all_reduce(warm, op=dist.ReduceOp.MAX, group=group)
    calls = max(2, min(100, int(_BUDGET_S / max(warm.item(), 1e-6))))
    seconds = _seconds_per_call(device, reduce, calls)
    return {
        "message_bytes": message_bytes,
        "bus_bytes_per_s": message_bytes / seconds * 2 * (ranks - 1) / ranks,
        "backend": dist.get_backend(group),
    }
