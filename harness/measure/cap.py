"""Scarce memory: a cap on what a CPU rank may allocate, and the cache handed back between two trainings."""

import gc
import resource
from pathlib import Path

import torch

from harness.contract.units import GIB, KIB


def cap_host_memory(cap_gib: float) -> None:
    """Let this process allocate that much more private memory, then refuse as a full machine would.

    What the imports hold already does not count, as NCCL and the CUDA context do not count against
    the cap of a GPU's allocator. The refusal is the C library's own: torch reports
    "DefaultCPUAllocator: can't allocate memory".
    """
    limit = data_bytes() + int(cap_gib * GIB)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def data_bytes() -> int:
    """Private writable memory of this process, mapped or used: what RLIMIT_DATA counts."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * KIB


def release_cached(device: torch.device) -> None:
    """Hand the allocator's unused blocks back, so that the next size does not inherit the fragments of this one."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
