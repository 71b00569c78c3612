"""Memory of the cards that people rent, as torch sees it: less than the name says."""

from harness.contract.errors import SpecError, nearest
from harness.contract.units import GIB

CARDS: dict[str, tuple[float, str]] = {
    "h200": (139.8, "measured: records of results/h200-x2-2026"),
    "l4": (22.0, "torch's messages on L4 say 22.0 to 22.2"),
    "a100-40gb": (39.4, "torch's messages on A100-SXM4-40GB say 39.4 to 39.6"),
    "a100-80gb": (79.1, "torch's messages on A100-SXM4-80GB say 79.1 to 79.3"),
    "h100-80gb": (79.1, "torch's messages on H100 80GB HBM3 say 79.1 to 79.2"),
    "b200": (178.3, "torch's messages on B200 say about 178.3"),
}
"""Card -> total GiB that CUDA reports, and where that is from. `--memory` is for all others."""
OUTSIDE_GIB = 1.8
"""CUDA context, NCCL and kernels outside torch: 1.1 to 2.1 GiB on the stored H200 runs."""
PACKED = 0.96
"""Part of the rest that training reaches before the allocator's blocks no longer fit: 133.2 of 138.2 GiB were reached
in results/h200-x2-2026/frontier; above it a run may fit, for example with expandable segments."""


def usable_bytes(gpu: str, memory_gib: float | None = None) -> tuple[int, str]:
    """Bytes of a card that torch can allocate, and where the figure is from. Raises SpecError for an unknown card."""
    if memory_gib is None and gpu not in CARDS:
        raise SpecError(
            f"--gpu: found {gpu!r}; {nearest(gpu, tuple(CARDS))}; for another card give --memory GIB as well, "
            "the total that torch.cuda.mem_get_info() reports there"
        )
    total, source = (memory_gib, "given as --memory") if memory_gib is not None else CARDS[gpu]
    if total <= OUTSIDE_GIB:
        raise SpecError(f"--memory: found {total} GiB; expected more than the {OUTSIDE_GIB} GiB that CUDA itself takes")
    return int((total - OUTSIDE_GIB) * GIB), source
