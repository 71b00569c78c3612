"""Data, weights, configuration and builders, each on its own in this process."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness.contract.engines import CONFIGS, ENGINES, parse_settings
from harness.contract.engines.zero import ZeroSettings
from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec
from harness.engines.base import Context, build_engine, import_engine
from harness.engines.fsdp2 import _placement
from harness.engines.loop import Tokens
from harness.engines.model import Weights, build_meta_model, count_parameters, decoder_blocks, silenced_dropout
from harness.engines.zero.config import deepspeed_config
from tests.engines.specs import SMALL, make_spec


def context(config: str = "ddp", rank: int = 0, world_size: int = 2, **changes: object) -> Context:
    spec = make_spec(config, **({"model__config": SMALL} | changes))  # type: ignore[arg-type]
    return Context(spec, rank, world_size, torch.device("cpu"))


@pytest.mark.parametrize("kind", ["skewed", "structured"])
def test_tokens_are_a_pure_function_of_place(kind: str) -> None:
    changes = {"data__gradient_accumulation": 2, "data__tokens": kind}
    places = list(product(range(2), range(3), range(2)))
    draws = {
        (rank, step, micro): tuple(Tokens(context(rank=rank, **changes)).draw(step, micro).flatten().tolist())
        for rank, step, micro in places
    }
    assert len(set(draws.values())) == len(places), "two places share their tokens"
    again = Tokens(context(rank=1, **changes))
    again.draw(0, 0)
    assert tuple(again.draw(2, 1).flatten().tolist()) == draws[1, 2, 1], "an earlier draw changed a later one"
    assert all(0 <= token < SMALL["vocab_size"] for tokens in draws.values() for token in tokens)


def test_structured_tokens_follow_one_another() -> None:
    tokens = Tokens(context(data__tokens="structured", data__sequence_length=4096)).draw(0, 0).flatten()
    letters = tokens.unique()
    assert len(letters) == SMALL["vocab_size"] // 16
    successors = (tokens[1:] - tokens[:-1]) % SMALL["vocab_size"] == SMALL["vocab_size"] // len(letters)
    assert 0.85 < successors.float().mean() < 0.91, "seven of eight, and a jump that lands on the successor"


def test_another_seed_gives_other_tokens() -> None:
    assert not torch.equal(Tokens(context()).draw(0, 0), Tokens(context(data__seed=1)).draw(0, 0))


@pytest.mark.parametrize("seed", [-1, 2**63 - 1, -(2**63)])
def test_every_seed_of_a_study_draws(seed: int) -> None:
    first, second = Tokens(context(data__seed=seed)), Tokens(context(data__seed=seed))
    assert torch.equal(first.draw(1, 0), second.draw(1, 0))
    assert not torch.equal(first.draw(1, 0), first.draw(2, 0))


def drawn(order: str) -> dict[str, torch.Tensor]:
    place = context()
    model = build_meta_model(place)
    weights = Weights(place, model)
    blocks = decoder_blocks(model)
    for block in blocks if order == "forward" else reversed(blocks):
        weights.materialize(block)
    weights.materialize(model)
    return {name: p.detach() for name, p in model.named_parameters()}


def test_weights_do_not_depend_on_drawing_order() -> None:
    forward, backward = drawn("forward"), drawn("backward")
    assert forward.keys() == backward.keys()
    assert all(torch.equal(forward[name], backward[name]) for name in forward)


def test_weights_are_representable_in_the_compute_dtype() -> None:
    # Else masters that start in float32 and masters copied from bfloat16 would start apart.
    assert all(torch.equal(p, p.bfloat16().float()) for p in drawn("forward").values())


def test_ties_and_float32_buffers_survive() -> None:
    place = context("zero-1")
    model = build_meta_model(place)
    before = count_parameters(model)
    Weights(place, model).materialize(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight  # type: ignore[union-attr]
    assert count_parameters(model) == before
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in model.buffers()} == {torch.float32}, "rotary frequencies were rounded"
    assert all(b.isfinite().all() and b.abs().sum() > 0 for b in model.buffers())


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("config", ["ddp", "fsdp2-reshard"])
@pytest.mark.parametrize(("checkpointing", "forwards"), [(False, 1), (True, 2)])
def test_checkpointing_runs_each_block_again(alone: None, config: str, checkpointing: bool, forwards: int) -> None:
    place = context(config, world_size=1, platform__world_size=1, model__activation_checkpointing=checkpointing)
    engine = build_engine(place)
    calls = []
    engine.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    engine.backward(engine.forward(Tokens(place).draw(0, 0)), last=True)
    assert len(calls) == forwards


@pytest.mark.parametrize("name", ENGINES)
def test_every_described_engine_has_a_builder(name: str) -> None:
    assert callable(import_engine(name))


def test_float16_is_refused_with_the_reason(alone: None) -> None:
    place = context("ddp", world_size=1, platform__device="cuda", numerics__compute="float16")
    with pytest.raises(SpecError, match="float16"):
        build_engine(place)


def test_numerics_an_engine_lacks_are_refused_by_role(alone: None) -> None:
    place = context("fsdp2-reshard", world_size=1, numerics__master="bfloat16")
    with pytest.raises(SpecError, match=r"numerics\.master"):
        build_engine(place)


@pytest.mark.parametrize("config", [name for name, entry in CONFIGS.items() if entry.engine == "zero"])
def test_deepspeed_is_told_everything_that_would_synchronize(config: str) -> None:
    spec = make_spec(config)
    settings = parse_settings("zero", spec.engine.settings)
    assert isinstance(settings, ZeroSettings)
    resolved = deepspeed_config(spec, settings, 2)
    assert "auto" not in str(resolved)
    assert resolved["timers"]["throughput"]["enabled"] is False
    assert resolved["wall_clock_breakdown"] is False
    assert "comms_logger" not in resolved
    assert resolved["flops_profiler"]["enabled"] is False
    assert resolved["zero_optimization"]["stage"] == settings.stage
    assert resolved["communication_data_type"] == "fp32"


GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "attn_pdrop": 0.2}


def test_dropout_is_off_where_numerics_are_equal() -> None:
    matched, shipped = (make_spec("ddp", arm, model__config=GPT2) for arm in ("matched", "defaults"))
    # The two that the config leaves out have a default in transformers.
    expected = {"attn_pdrop": 0.2, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
    assert expected.items() <= silenced_dropout(matched).items()
    assert silenced_dropout(shipped) == {}
    assert all(m.p == 0 for m in built(matched).modules() if isinstance(m, nn.Dropout))
    assert any(m.p > 0 for m in built(shipped).modules() if isinstance(m, nn.Dropout))


def built(spec: RunSpec) -> nn.Module:
    return build_meta_model(Context(spec, 0, 2, torch.device("cpu")))


@pytest.mark.parametrize(
    ("shape", "dimension"),
    [((8, 6, 4), None), ((6, 8, 5), 1), ((6, 5, 8), 2), ((6, 5, 7), None), ((7, 8), None), ((6,), None)],
)
def test_experts_are_cut_evenly(shape: tuple[int, ...], dimension: int | None) -> None:
    placement = _placement(nn.Parameter(torch.empty(shape, device="meta")), 4)
    assert (placement.dim if placement else None) == dimension
