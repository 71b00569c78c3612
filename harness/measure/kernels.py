"""Which kernels make up the compute of a step. They show why a run stays below the matmul peak."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("flash", "fmha", "sdpa", "attention", "mha")),
    ("matmul", ("gemm", "gemv", "cutlass", "nvjet", "xmma", "cublas", "splitk", "bgemm")),
    ("loss", ("softmax", "nll_loss", "cross_entropy")),
    ("optimizer", ("adam", "fusedoptimizer")),
    # Foreach kernels that are not the optimizer's: norms and scaling of clipping, casts of FSDP2 and DDP.
    ("clipping and casts", ("multi_tensor_apply", "lpnorm")),
    ("shard copies", ("chunk_cat", "split_with_sizes", "catarray")),
    ("fused pointwise", ("triton_",)),
    ("memcpy and memset", ("memcpy", "memset")),
)
"""Kind -> parts of a kernel's name in lower case; the first that fits wins, the rest is pointwise and reductions."""
REST = "pointwise and reductions"
SHOWN = 12
NAME_CHARACTERS = 120


def kind_of(name: str) -> str:
    """The kind of one kernel by its name."""
    lower = name.lower()
    return next((kind for kind, parts in KINDS if any(part in lower for part in parts)), REST)


def by_kernel(kernels: Sequence[tuple[str, float]], steps: int) -> dict[str, Any]:
    """`kernels` is (name, seconds) of each launch; NCCL's and the copies over the bus are left out by the caller.

    Returns `kernel_kinds_s`, seconds per step of each kind, longest first, and `top_kernels`, the longest by
    name with count and seconds per step. Kernels may overlap each other, so the sum can exceed the busy time.
    """
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(list)
    for name, seconds in kernels:
        kinds[kind_of(name)] += seconds
        names[name].append(seconds)
    longest = sorted(names.items(), key=lambda item: -sum(item[1]))[:SHOWN]
    return {
        "kernel_kinds_s": {kind: s / steps for kind, s in sorted(kinds.items(), key=lambda item: -item[1])},
        "top_kernels": [
            {"name": _shorten(name), "count": len(times) / steps, "time_s": sum(times) / steps}
            for name, times in longest
        ],
    }


def _shorten(name: str) -> str:
    """Cut in the middle, because template names begin alike and end with what the kernel computes."""
    if len(name) <= NAME_CHARACTERS:
        return name
    half = (NAME_CHARACTERS - 3) // 2
    return f"{name[:half]}...{name[-half:]}"
