"""Data, weights, configuration and builders, each on its own in this process."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
import torch.distributed as dist

from harness.contract.engines import CONFIGS, ENGINES, parse_settings
from harness.contract.engines.zero import ZeroSettings
from harness.contract.errors import SpecError
from harness.engines.base import Context, build_engine, import_engine
from harness.engines.loop import Tokens
from harness.engines.model import Weights, build_meta_model, count_parameters, decoder_blocks
from harness.engines.zero import deepspeed_config
from tests.engines.specs import SMALL, make_spec


def context(config: str = "ddp", rank: int = 0, world_size: int = 2, **changes: object) -> Context:
    spec = make_spec(config, **({"model__config": SMALL} | changes))  # type: ignore[arg-type]
    return Context(spec, rank, world_size, torch.device("cpu"))


def test_tokens_are_a_pure_function_of_place() -> None:
    places = list(product(range(2), range(3), range(2)))
    draws = {
        (rank, step, micro): tuple(
            Tokens(context(rank=rank, data__gradient_accumulation=2)).draw(step, micro).flatten().tolist()
        )
        for rank, step, micro in places
    }
    assert len(set(draws.values())) == len(places), "two places share their tokens"
    again = Tokens(context(rank=1, data__gradient_accumulation=2))
    again.draw(0, 0)
    assert tuple(again.draw(2, 1).flatten().tolist()) == draws[1, 2, 1], "an earlier draw changed a later one"
    assert all(0 <= token < SMALL["vocab_size"] for tokens in draws.values() for token in tokens)


def test_another_seed_gives_other_tokens() -> None:
    assert not torch.equal(Tokens(context()).draw(0, 0), Tokens(context(data__seed=1)).draw(0, 0))


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
