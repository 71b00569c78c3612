"""What of this host a process may use: its cores and its memory, cut by the container's limits."""

import math
import os
from pathlib import Path

from harness.contract.units import GIB

CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")


def usable_cores() -> int:
    """Cores this process may run on: its affinity, cut by the container's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = read_text(CGROUP_CPU).partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, math.floor(int(quota) / int(period))))
    return cores


def memory_gib() -> float:
    """Host memory this process may use, in GiB: physical, cut by the container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = read_text(CGROUP_MEMORY).strip()
    if limit.isdigit():
        total = min(total, int(limit))
    return round(total / GIB, 2)


def read_text(path: Path) -> str:
    """A file of the kernel; empty where it has none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
