"""Every config really trains on two CPU ranks, and does what its spec says."""

import pytest

from harness.contract.engines import CONFIGS, ENGINES
from tests.engines.conftest import SHARDINGS, WRAPPERS, WRONG, Trained

# The first test waits for all the trainings.
pytestmark = pytest.mark.timeout(1600)
TOLERANCE = 1e-3
"""Relative, on the loss: a few roundings of bfloat16 (4e-3 each on single activations), averaged over tokens."""
NORM_TOLERANCE = 0.02
"""Relative, on the gradient norm, which shows a wrong scale or a lost micro-step long before the loss does."""
FLOAT32_TOLERANCE = 2e-5
WORLD_SIZE = 2

Results = dict[str, Trained]


def distance(left: Trained, right: Trained, steps: int = 5) -> float:
    pairs = zip(left.loss[:steps], right.loss[:steps], strict=True)
    return max(abs(a - b) / abs(b) for a, b in pairs)


@pytest.mark.parametrize("arm", ["matched", "defaults"])
@pytest.mark.parametrize("config", CONFIGS)
def test_every_config_trains_and_keeps_its_promises(trained: Results, config: str, arm: str) -> None:
    run = trained[f"{arm}/{config}"]
    assert run.parity == []
    for result in run.ranks:
        assert len(result.step_times_s) == 1 and all(t > 0 for t in result.step_times_s)
        assert result.window_s >= sum(result.step_times_s)
        assert len(result.loss) == len(result.grad_norm) == 5
        assert all(norm is not None and norm > 0 for norm in result.grad_norm)
    assert run.ranks[0].loss != run.ranks[1].loss, "both ranks trained on the same data"
    assert run.ranks[0].grad_norm == pytest.approx(run.ranks[1].grad_norm), "the norm is global"


@pytest.mark.parametrize("config", CONFIGS)
def test_matched_configs_follow_ddp(trained: Results, config: str) -> None:
    run, reference = trained[f"matched/{config}"], trained["matched/ddp"]
    assert distance(run, reference) < TOLERANCE
    assert run.ranks[0].grad_norm == pytest.approx(reference.ranks[0].grad_norm, rel=NORM_TOLERANCE)


@pytest.mark.parametrize("config", SHARDINGS)
def test_in_float32_the_engines_are_one_training(trained: Results, config: str) -> None:
    run, reference = trained[f"float32/{config}"], trained["float32/ddp"]
    assert run.parity == []
    assert distance(run, reference) < FLOAT32_TOLERANCE
    assert run.ranks[0].grad_norm == pytest.approx(reference.ranks[0].grad_norm, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("matched/ddp", 16),
        ("matched/zero-0", 16),
        ("matched/zero-1", 4 + 12 / WORLD_SIZE),
        ("matched/zero-2", 2 + 14 / WORLD_SIZE),
        ("matched/zero-3", 16 / WORLD_SIZE),
        # The CPU optimizer reads a float32 copy of the gradients.
        ("matched/zero-3-offload", (16 + 4) / WORLD_SIZE),
        ("offload/zero-2", 2 + (4 + 12) / WORLD_SIZE),
        ("matched/fsdp2-reshard", 16 / WORLD_SIZE),
        ("matched/fsdp2-noreshard", 16 / WORLD_SIZE),
        ("matched/fsdp2-reshard-offload", 16 / WORLD_SIZE),
        ("matched/fsdp2-hsdp", 16 / WORLD_SIZE),
        # One rank a node: nothing to shard inside it, and each node holds a whole copy.
        ("two-nodes/fsdp2-hsdp", 16),
        ("defaults/ddp", 8),
        ("defaults/zero-3", 16 / WORLD_SIZE),
        ("defaults/fsdp2-reshard", 8 / WORLD_SIZE),
        ("float32/ddp", 16),
        ("float32/fsdp2-reshard", 16 / WORLD_SIZE),
    ],
)
def test_state_bytes_are_what_the_numerics_say(trained: Results, name: str, expected: float) -> None:
    for result in trained[name].ranks:
        assert result.state is not None
        assert result.state.expected_bytes_per_parameter == pytest.approx(expected)
        # Partitions are padded to equal lengths.
        assert result.state.bytes_per_parameter == pytest.approx(expected, rel=0.01)


def test_offloaded_state_lies_in_host_memory(trained: Results) -> None:
    # On the CPU platform all memory is the host's; what matters is that the whole state is found there.
    state = trained["matched/fsdp2-reshard-offload"].ranks[0].state
    assert state is not None
    assert state.host_bytes == state.parameter_bytes + state.gradient_bytes + state.optimizer_bytes


@pytest.mark.parametrize("config", CONFIGS)
def test_found_numerics_are_read_from_the_tensors(trained: Results, config: str) -> None:
    found = trained[f"matched/{config}"].ranks[0].found
    promised = ENGINES[CONFIGS[config].engine].matched
    assert (found.parameter, found.master, found.compute) == (promised.parameter, promised.master, promised.compute)
    assert (found.reduce, found.optimizer_state) == (promised.reduce, "float32")
    assert found.optimizer_class.endswith("AdamW (fused)")
    assert trained["defaults/fsdp2-reshard"].ranks[0].found.optimizer_state == "bfloat16"


@pytest.mark.parametrize("config", SHARDINGS)
def test_gradient_accumulation_means_the_same_everywhere(trained: Results, config: str) -> None:
    run = trained[f"accumulate/{config}"]
    assert distance(run, trained["accumulate/ddp"]) < TOLERANCE
    assert run.ranks[0].grad_norm == pytest.approx(trained["accumulate/ddp"].ranks[0].grad_norm, rel=NORM_TOLERANCE)
    assert distance(run, trained[f"matched/{config}"], steps=1) > 1e-4, "twice the tokens, another loss"
    assert run.ranks[0].grad_norm[0] < trained[f"matched/{config}"].ranks[0].grad_norm[0]  # type: ignore[operator]


@pytest.mark.parametrize("config", WRAPPERS)
def test_clipping_shortens_the_update_not_the_norm(trained: Results, config: str) -> None:
    clipped, free = trained[f"clip/{config}"], trained[f"no-clip/{config}"]
    assert clipped.ranks[0].grad_norm[0] == pytest.approx(free.ranks[0].grad_norm[0], rel=1e-3)
    assert clipped.ranks[0].grad_norm[0] > 0.01  # type: ignore[operator]
    fall = [run.loss[0] - run.loss[-1] for run in (clipped, free)]
    assert fall[0] != pytest.approx(fall[1], abs=1e-5)
    assert distance(clipped, trained["clip/ddp"]) < TOLERANCE


@pytest.mark.parametrize("config", WRAPPERS)
def test_checkpointing_changes_no_number(trained: Results, config: str) -> None:
    assert distance(trained[f"checkpointing/{config}"], trained[f"matched/{config}"]) < 1e-4


@pytest.mark.parametrize("config", WRAPPERS)
def test_reduction_can_be_asked_for_in_bfloat16(trained: Results, config: str) -> None:
    run = trained[f"reduce-bf16/{config}"]
    assert run.parity == []
    assert run.ranks[0].found.reduce == "bfloat16"
    # ZeRO keeps the reduced gradient in bfloat16 either way, and the sum of two ranks rounds to the same number.
    if config != "zero-3":
        assert run.ranks[0].grad_norm != trained[f"matched/{config}"].ranks[0].grad_norm
    assert distance(run, trained["matched/ddp"]) < TOLERANCE


@pytest.mark.parametrize("name", ["pretrained", "pretrained-experts"])
@pytest.mark.parametrize("config", WRAPPERS)
def test_pretrained_weights_reach_every_engine(trained: Results, config: str, name: str) -> None:
    run = trained[f"{name}/{config}"]
    assert run.loss[0] == pytest.approx(run.expected_loss, rel=1e-3), "transformers itself finds this loss"
    assert distance(run, trained[f"{name}/ddp"]) < TOLERANCE
    loading = run.ranks[0].loading
    # Each parameter is read once, in bfloat16.
    assert loading["read_bytes"] == 2 * run.ranks[0].parameters
    assert loading["read_bytes_per_s"] > 0 and loading["host_peak_bytes"] > loading["read_bytes"]
    assert trained[f"matched/{config}"].ranks[0].loading == {}


@pytest.mark.parametrize(
    ("variant", "base"),
    [
        ("groups/fsdp2-reshard", "matched/fsdp2-reshard"),
        ("prefetch/fsdp2-reshard", "matched/fsdp2-reshard"),
        ("leaves/zero-3", "matched/zero-3"),
        ("sharded-small/zero-3", "matched/zero-3"),
        ("two-nodes/fsdp2-hsdp", "matched/fsdp2-hsdp"),
        ("foreach/ddp", "matched/ddp"),
        ("eager/ddp", "matched/ddp"),
    ],
)
def test_settings_that_only_change_speed_change_no_loss(trained: Results, variant: str, base: str) -> None:
    assert distance(trained[variant], trained[base]) < TOLERANCE
    assert trained[variant].parity == []


def test_micro_batch_changes_tokens_and_prediction(trained: Results) -> None:
    one, three = trained["matched/ddp"].ranks[0].ledger, trained["micro-batch/ddp"].ranks[0].ledger
    assert trained["micro-batch/ddp"].parity == [], "three times the tokens are what its spec promises"
    assert one is not None and three is not None
    assert three["parts_bytes"]["activations"] == 3 * one["parts_bytes"]["activations"]
    assert distance(trained["micro-batch/ddp"], trained["matched/ddp"], steps=1) > 1e-4


CAUGHT = {
    "no_update": "found no change of any parameter in 10 steps: the optimizer updates nothing",
    "learning_rate": "as with a learning rate of 1.",
    "summed_gradients": "2.00x the reference's: gradients are summed over 2 ranks, not averaged",
    "repeated_data": "data of rank 1: promised batches of its own, found those of rank 0",
    "frozen_layer": "found no change of model.layers.1 in 10 steps: model.layers.1 is frozen",
    "dropout": "loss of step 0, before any update: promised 5.",
}


@pytest.mark.parametrize("config", CONFIGS)
def test_every_engine_passes_the_gate_on_structured_data(trained: Results, config: str) -> None:
    assert trained[f"gate/{config}"].parity == []


@pytest.mark.parametrize("config", ["zero-2", "zero-3", "zero-3-offload"])
def test_zero_keeps_float32_gradients_when_asked(trained: Results, config: str) -> None:
    run = trained[f"gate/float32/{config}"]
    assert run.parity == []
    for result in run.ranks:
        assert result.found.gradient == "float32" and result.state is not None
        assert result.state.bytes_per_parameter == pytest.approx(result.state.expected_bytes_per_parameter, rel=0.01)


@pytest.mark.parametrize("kind", WRONG)
def test_the_gate_names_a_wrong_training(trained: Results, kind: str) -> None:
    said = trained[f"gate/{kind}"].parity
    assert CAUGHT[kind] in said[0], said


def test_the_loss_falls_by_a_fifth(trained: Results) -> None:
    loss = trained["gate/0"].loss
    assert len(loss) == 40 and loss[-1] < 0.8 * loss[0]


def test_a_wrong_forward_names_its_module(trained: Results) -> None:
    assert trained["gate/dropout"].parity[0].endswith("the first module whose output differs is model.layers.0")
