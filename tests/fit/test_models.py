"""Parameters by formula are exact: each family as transformers builds it, and whole models as their cards say."""

import json
from typing import Any

import pytest
from dtbench.fit.models import sizes

from harness.contract.errors import SpecError
from harness.engines.count import count
from harness.measure.shapes import shape_of
from tests.engines.specs import MODELS, SMALL

ROOT = MODELS.parents[1]
PARAMETERS = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_248_023_552,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-3-1b": 999_885_952,
    "olmo-2-7b": 7_298_617_344,
    "olmoe-1b-7b": 6_919_161_856,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v2-lite": 15_706_484_224,
}
"""All parameters, by transformers 5.24.0 on the meta device (python -m harness.engines.count < CONFIG)."""


def plain(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_exact(name: str) -> None:
    shape = shape_of(plain(name))
    assert shape is not None
    assert shape.parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", ["olmoe-1b-7b", "deepseek-v2-lite", "gemma-3-1b"])
def test_the_formula_agrees_with_the_meta_device(name: str) -> None:
    config = plain(name) | {"num_hidden_layers": 3}
    shape, counted = shape_of(config), count(config)
    assert shape is not None
    assert (shape.parameters, shape.block_parameters) == (counted["parameters"], counted["block_parameters"])


@pytest.mark.parametrize(("name", "billions"), [("qwen3-30b-a3b", 3.35), ("olmoe-1b-7b", 1.28)])
def test_only_active_experts_are_computed(name: str, billions: float) -> None:
    shape = shape_of(plain(name))
    assert shape is not None
    assert shape.active_parameters / 1e9 == pytest.approx(billions, abs=0.01)


def test_an_unknown_family_is_counted_on_meta() -> None:
    shape, how = sizes({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})
    assert how == "meta device"
    assert shape.parameters == 124_439_808
    assert (shape.layers, shape.hidden, shape.intermediate) == (12, 768, 3072)


def test_a_family_nobody_knows_is_refused() -> None:
    with pytest.raises(SpecError, match="no causal LM"):
        sizes({"model_type": "no-such-family", "vocab_size": 8})


def test_an_incomplete_config_names_the_key() -> None:
    with pytest.raises(SpecError, match="hidden_size"):
        sizes({key: value for key, value in SMALL.items() if key != "hidden_size"})
