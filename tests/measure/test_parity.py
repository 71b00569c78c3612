"""The gate's pure part: promises against findings."""

import pytest
from msgspec import structs

from harness.contract.measured import Found
from harness.measure.parity import loss_mismatches, numerics_mismatches, token_mismatches
from tests.engines.specs import make_spec

KEPT = Found(
    parameter="float32",
    compute="bfloat16",
    gradient="float32",
    reduce="float32",
    master="float32",
    optimizer_state="float32",
    optimizer_class="torch.optim.adamw.AdamW (fused)",
)


def test_kept_promises_pass() -> None:
    assert numerics_mismatches(make_spec("fsdp2-reshard"), KEPT) == []


@pytest.mark.parametrize("role", ["parameter", "compute", "reduce", "master", "optimizer_state", "optimizer_class"])
def test_each_broken_promise_is_named(role: str) -> None:
    broken = structs.replace(KEPT, **{role: "float8"})
    (mismatch,) = numerics_mismatches(make_spec("fsdp2-reshard"), broken)
    assert str(mismatch).startswith(f"{role}: promised ") and "float8" in str(mismatch)


def test_a_tensor_never_held_is_no_mismatch() -> None:
    assert numerics_mismatches(make_spec("zero-3"), structs.replace(KEPT, parameter="bfloat16", master=None)) == []


def test_tokens_count_all_ranks_and_micro_steps() -> None:
    spec = make_spec("ddp", data__gradient_accumulation=2)
    assert token_mismatches(spec, 2 * 2 * 64) == []
    assert token_mismatches(spec, 2 * 64) != []


def test_losses_are_held_to_the_relative_tolerance() -> None:
    spec = make_spec("ddp", protocol__parity_tolerance=0.01)
    assert loss_mismatches([8.0, 8.0], [8.07, 7.93], spec) == []
    assert [m.what for m in loss_mismatches([8.0, 8.0], [8.0, 8.09], spec)] == ["loss of step 1"]
    assert loss_mismatches([8.0], [float("nan")], spec) != []
    assert loss_mismatches(None, [1.0], spec) == []


def test_only_the_first_parity_steps_count() -> None:
    spec = make_spec("ddp", protocol__parity_steps=1)
    assert loss_mismatches([8.0, 8.0], [8.0, 0.0], spec) == []
