"""Memory of one rank: peaks, what the driver and the host report, the tensors of its training state, and caps."""

import gc
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch

from harness.contract.measured import Memory, State
from harness.contract.units import GIB, KIB


class Gauge:
    """Reads one device's memory. The cheap reading never calls the driver, so it may be taken in the timed window."""

    def __init__(self, device: torch.device, cap_gib: float | None) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._retries_before = 0
        self._outside_bytes = 0
        self._limit_bytes = -1
        if self._cuda:
            total = torch.cuda.get_device_properties(device).total_memory
            self._limit_bytes = total
            if cap_gib is not None:
                self._limit_bytes = min(total, int(cap_gib * GIB))
                torch.cuda.set_per_process_memory_fraction(self._limit_bytes / total, device)
            self._capped = self._limit_bytes < total

    def now(self) -> tuple[int, int]:
        """(allocated, free) bytes; free counts what the allocator may still ask for, -1 when there is no device."""
        if not self._cuda:
            return host_rss_bytes(), -1
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        reserved = stats["reserved_bytes"]["all"]["current"]
        return stats["allocated_bytes"]["all"]["current"], max(0, self._limit_bytes - self._outside_bytes - reserved)

    def open_window(self) -> None:
        """Start the peaks afresh; call it outside the timed window."""
        if not self._cuda:
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        self._retries_before = torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)
        free, total = torch.cuda.mem_get_info(self._device)
        # The cap limits the allocator only. Memory of NCCL and of the CUDA context does not count against it.
        self._outside_bytes = 0 if self._capped else total - free - torch.cuda.memory_reserved(self._device)

    def close_window(self) -> Memory:
        """The peaks since `open_window`."""
        if not self._cuda:
            return Memory(host_rss_peak_bytes=host_rss_peak_bytes())
        stats = torch.cuda.memory_stats(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        pinned = torch.cuda.host_memory_stats().get("allocated_bytes.current")
        return Memory(
            peak_allocated_bytes=stats["allocated_bytes.all.peak"],
            peak_active_bytes=stats["active_bytes.all.peak"],
            peak_reserved_bytes=stats["reserved_bytes.all.peak"],
            alloc_retries=stats.get("num_alloc_retries", 0) - self._retries_before,
            device_used_bytes=total - free,
            non_torch_bytes=total - free - stats["reserved_bytes.all.current"],
            host_rss_peak_bytes=host_rss_peak_bytes(),
            host_pinned_bytes=pinned,
        )


def announce_refusals() -> None:
    """Let CUDA's allocator log each refusal of memory, also when the program catches the error. This costs nothing
    until a refusal. The line is evidence: a rank that caught the error and then hangs logs nothing else.
    """
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None:
        attach(_announce_refusal)


def _announce_refusal(device: int, asked_bytes: int, allowed_bytes: int, free_bytes: int) -> None:
    print(
        f"ALLOCATION REFUSED at {time.time():.3f}: GPU {device}, {asked_bytes} bytes asked, {free_bytes} free",
        file=sys.stderr, flush=True,
    )  # fmt: skip


class PhasePeaks:
    """Finds the phase of a step in which allocated memory peaks; only for a step outside the timed window."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._phase: str | None = None
        self._peaks: dict[str, int] = {}

    def enter(self, phase: str) -> None:
        """End the phase before. The host runs ahead of the device, but that does not matter, because the allocator
        follows the host."""
        self._close()
        self._phase = phase
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._device)

    def largest(self) -> str | None:
        """End the last phase; the phase with the highest peak, None without a device allocator."""
        self._close()
        self._phase = None
        return max(self._peaks, key=lambda phase: self._peaks[phase]) if self._peaks else None

    def _close(self) -> None:
        if self._cuda and self._phase is not None:
            peak = torch.cuda.max_memory_allocated(self._device)
            self._peaks[self._phase] = max(peak, self._peaks.get(self._phase, 0))


def host_rss_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def host_rss_peak_bytes() -> int:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def covered_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes covered by the tensors together: views and overlaps of one storage count once."""
    stretches: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        start = tensor.data_ptr()
        stretches[str(tensor.device), tensor.untyped_storage().data_ptr()].append(
            (start, start + tensor.numel() * tensor.element_size())
        )
    total = 0
    for parts in stretches.values():
        end = 0
        for first, last in sorted(parts):
            total += max(0, last - max(first, end))
            end = max(end, last)
    return total


def take_inventory(holdings: Iterable[tuple[str, torch.Tensor]], parameters: int, expected: float | None) -> State:
    """Count (role, tensor) pairs; `parameters` is the whole model's count, `expected` the engine's formula."""
    by_role: dict[str, list[torch.Tensor]] = defaultdict(list)
    for role, tensor in holdings:
        by_role[role].append(tensor)
    sizes = {role: covered_bytes(by_role[role]) for role in ("parameter", "gradient", "optimizer")}
    on_host = [t for tensors in by_role.values() for t in tensors if t.device.type == "cpu"]
    return State(
        parameter_bytes=sizes["parameter"],
        gradient_bytes=sizes["gradient"],
        optimizer_bytes=sizes["optimizer"],
        host_bytes=covered_bytes(on_host),
        bytes_per_parameter=sum(sizes.values()) / parameters,
        expected_bytes_per_parameter=expected,
    )


def cap_host_memory(cap_gib: float) -> None:
    """Let this process allocate that much more private memory, and then fail as on a full machine. Memory of the
    imports does not count, just as NCCL and the CUDA context do not count against the cap of a GPU's allocator. The
    refusal is the C library's own: torch reports "DefaultCPUAllocator: can't allocate memory".
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
