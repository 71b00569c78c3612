"""What a model's own blocks keep and compute, by fake tensors, against the formulas."""

import json
from functools import cache
from typing import Any

import pytest
from dtbench.fit.models import sizes

from harness.engines.count import LENGTHS, trace
from harness.measure.flops import flops_per_token
from harness.measure.ledger import predict
from tests.engines.specs import MODELS, make_spec

FAMILIES = ("llama-3.1-8b", "qwen2.5-3b", "qwen3-8b", "olmo-2-7b", "olmoe-1b-7b", "qwen3-30b-a3b")


def two_blocks(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text())
    return found | {"num_hidden_layers": 2}


@cache
def traced(name: str) -> dict[str, float]:
    return trace(two_blocks(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_formulas_agree_with_what_blocks_keep(name: str) -> None:
    spec = make_spec("ddp", model__config=two_blocks(name), data__sequence_length=1024, data__micro_batch=1)
    ledger = predict(spec)
    assert ledger is not None
    # A CPU's attention repeats the keys and values of grouped queries, which adds up to 8%.
    assert ledger.block / 1024 <= traced(name)["bytes_per_token"] * 1.001
    assert ledger.block / 1024 == pytest.approx(traced(name)["bytes_per_token"], rel=0.08)


@pytest.mark.parametrize("name", FAMILIES)
def test_formula_flops_are_the_counted_ones(name: str) -> None:
    # Backward computes twice what forward does; of experts only the active ones compute.
    by_formula = flops_per_token(two_blocks(name), LENGTHS[0], causal=False)
    assert by_formula == 3 * traced(name)["forward_flops_per_token"]


def test_an_unknown_family_keeps_what_was_traced() -> None:
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512}
    shape, _ = sizes(config)
    # Per token and element of the width: two norms of 2 + 2, attention of 4, an MLP of 4 times the width.
    assert shape.saved is not None
    assert 20 * 2 * 64 < shape.saved[0] < 40 * 2 * 64
    assert shape.saved[1] == 0
    eager = sizes(config, "eager")[0]
    assert eager.saved is not None
    assert eager.saved[1] >= 2 * 2
