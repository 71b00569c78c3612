"""The pure part of the parity gate: it compares promises with what was measured."""

import pytest
from msgspec import structs

from harness.contract.measured import Found
from harness.contract.parity import (
    Mismatch,
    Trace,
    batch_mismatches,
    first_loss_tolerance,
    numerics_mismatches,
    reference_mismatches,
    token_mismatches,
    update_mismatches,
)
from harness.contract.spec import RunSpec
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


@pytest.mark.parametrize(
    "role", ["parameter", "compute", "gradient", "reduce", "master", "optimizer_state", "optimizer_class"]
)
def test_each_broken_promise_is_named(role: str) -> None:
    broken = structs.replace(KEPT, **{role: "float8"})
    (mismatch,) = numerics_mismatches(make_spec("fsdp2-reshard"), broken)
    assert str(mismatch).startswith(f"{role}: promised ") and "float8" in str(mismatch)


def test_a_tensor_never_held_is_no_mismatch() -> None:
    assert (
        numerics_mismatches(
            make_spec("zero-3"), structs.replace(KEPT, parameter="bfloat16", gradient="bfloat16", master=None)
        )
        == []
    )


def test_tokens_count_all_ranks_and_micro_steps() -> None:
    spec = make_spec("ddp", data__gradient_accumulation=2)
    assert token_mismatches(spec, 2 * 2 * 64) == []
    assert token_mismatches(spec, 2 * 64) != []


def skewed(reference: list[float], found: list[float], **protocol: float) -> list[Mismatch]:
    spec = make_spec("ddp", **{f"protocol__{key}": value for key, value in protocol.items()})
    return reference_mismatches(spec, Trace(loss=found), Trace(loss=reference))


def test_skewed_losses_are_held_to_the_relative_tolerance() -> None:
    assert skewed([8.0, 8.0], [8.07, 7.93], parity_tolerance=0.01) == []
    assert [m.what for m in skewed([8.0, 8.0], [8.0, 8.09], parity_tolerance=0.01)] == ["loss of step 1"]
    assert skewed([8.0], [float("nan")]) != []


def test_only_the_first_parity_steps_count() -> None:
    assert skewed([8.0, 8.0], [8.0, 0.0], parity_steps=1) == []


SPEC: RunSpec = make_spec("ddp", data__tokens="structured", data__gradient_accumulation=3)
FALLING = Trace(
    loss=[8.0, 7.0, 6.0, 5.5, 5.0],
    grad_norm=[4.0, 3.0, 3.0, 3.0, 3.0],
    moved={"layers.0": 1e-3, "layers.1": 1e-3},
    outputs={"embed": 0.1, "layers.0": 0.2, "layers.1": 0.3},
)


def against(**changes: object) -> list[str]:
    return [str(m) for m in reference_mismatches(SPEC, structs.replace(FALLING, **changes), FALLING)]  # type: ignore[arg-type]


def test_a_training_like_the_reference_passes() -> None:
    near = [loss * (1 + first_loss_tolerance(SPEC) / 2) for loss in FALLING.loss]
    assert against(loss=near, grad_norm=[4.02, 3.1, 2.9, 3.0, 3.0]) == []


def test_a_wrong_loss_names_the_differing_module() -> None:
    (said,) = against(loss=[8.05, 7.05, 6.05, 5.55, 5.05], outputs={"embed": 0.1, "layers.0": 0.21, "layers.1": 0.33})
    assert said.startswith("loss of step 0, before any update: promised 8 within 0.0")
    assert said.endswith("the first module whose output differs is layers.0")


@pytest.mark.parametrize(("factor", "what"), [(2, "2 ranks"), (3, "3 micro-steps")])
def test_summed_gradients_are_named(factor: int, what: str) -> None:
    (said,) = against(grad_norm=[4.0 * factor, 3.0, 3.0, 3.0, 3.0])
    assert f"found {4 * factor}, {factor}.00x the reference's: gradients are summed over {what}, not averaged" in said


def test_an_unexplained_norm_gets_no_cause() -> None:
    (said,) = against(grad_norm=[2.7, 3.0, 3.0, 3.0, 3.0])
    assert said.endswith("found 2.7, 0.68x the reference's")


def test_a_wrong_learning_rate_is_named() -> None:
    (said,) = against(moved={"layers.0": 1.5e-3, "layers.1": 1.5e-3})
    assert said.endswith("as with a learning rate of 1.50x")


def test_the_fall_is_compared_and_not_the_losses() -> None:
    (said,) = against(loss=[8.0, 7.5, 7.0, 6.6, 6.2])
    assert said == "mean fall of the loss from step 0 to steps 1 to 4: promised 2.125 within 5%, found 1.175, 45% apart"
    assert against(loss=[8.0, 7.0, 6.0, 5.5, float("nan")]) != []


def test_modules_that_do_not_move_are_named() -> None:
    assert update_mismatches({"a": 1e-3, "b": 1e-3}, 10) == []
    assert "b is frozen" in str(update_mismatches({"a": 1e-3, "b": 0.0}, 10)[0])
    assert "the optimizer updates nothing" in str(update_mismatches({"a": 0.0, "b": 0.0}, 10)[0])


def test_repeated_data_is_named_with_its_rank() -> None:
    assert batch_mismatches([[1, 2], [3, 2]]) == [], "short batches may be alike by chance"
    (said,) = batch_mismatches([[1, 2], [1, 2]])
    assert str(said) == (
        "data of rank 1: promised batches of its own, found those of rank 0: one rank's data is repeated"
    )
    assert "found one batch 2 times" in str(batch_mismatches([[1, 2], [3, 3]])[0])
