"""Training state by inventory: the bytes of the real tensors a rank holds, each stretch of memory counted once."""

from collections import defaultdict
from collections.abc import Iterable

import torch

from harness.contract.measured import State


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
