"""What is really handed to collectives, seen by replacing them during one step outside the timed window."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

_INPUTS = {
    "all_reduce": (0, "tensor"),
    "reduce_scatter_tensor": (1, "input"),
    # What torch 2.13 calls it.
    "reduce_scatter_single": (1, "input"),
}


@contextmanager
def reduced_bytes() -> Iterator[Counter[torch.dtype]]:
    """Bytes given to reductions while the context lasts, by dtype.

    Sees the calls made through Python (FSDP2, communication hooks), not those of DDP's C++ reducer.
    """
    seen: Counter[torch.dtype] = Counter()
    originals = {name: getattr(dist, name) for name in _INPUTS if hasattr(dist, name)}

    def watch(name: str, position: int, keyword: str) -> None:
        def stand_in(*arguments: Any, **keywords: Any) -> Any:
            tensor = keywords[keyword] if keyword in keywords else arguments[position]
            seen[tensor.dtype] += tensor.numel() * tensor.element_size()
            return originals[name](*arguments, **keywords)

        setattr(dist, name, stand_in)

    for name in originals:
        watch(name, *_INPUTS[name])
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
