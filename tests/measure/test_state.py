"""Bytes of real tensors, each stretch of memory once."""

import torch

from harness.measure.memory import covered_bytes, take_inventory


def test_views_of_one_buffer_count_once() -> None:
    flat = torch.zeros(100, dtype=torch.bfloat16)
    assert covered_bytes([flat, flat[:30], flat[10:50], flat.view(10, 10)]) == 200


def test_separate_parts_of_one_buffer_add_up() -> None:
    flat = torch.zeros(100, dtype=torch.float32)
    assert covered_bytes([flat[:10], flat[20:30]]) == 80


def test_the_freed_tensor_of_stage_three_counts_nothing() -> None:
    assert covered_bytes([torch.empty(0)]) == 0


def test_inventory_by_role() -> None:
    holdings = [
        ("parameter", torch.zeros(10, dtype=torch.bfloat16)),
        ("gradient", torch.zeros(10, dtype=torch.bfloat16)),
        ("optimizer", torch.zeros(30, dtype=torch.float32)),
    ]
    state = take_inventory(holdings, parameters=10, expected=16.0)
    assert (state.parameter_bytes, state.gradient_bytes, state.optimizer_bytes) == (20, 20, 120)
    assert state.bytes_per_parameter == 16.0
    assert state.host_bytes == 160
