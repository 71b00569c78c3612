"""FLOPs by the published formula, and no guess where it does not apply."""

import json

import pytest

from harness.measure.flops import TERA, flops_per_token, peak_flops, utilization
from harness.measure.shapes import shape_of
from tests.engines.specs import MODELS


def config(name: str) -> dict[str, object]:
    plain: dict[str, object] = json.loads((MODELS / f"{name}.json").read_text())
    return plain


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen2.5-0.5b", 0.494), ("qwen2.5-1.5b", 1.544), ("qwen2.5-3b", 3.086), ("qwen2.5-7b", 7.616)],
)
def test_parameter_counts_are_the_model_cards(name: str, billions: float) -> None:
    shape = shape_of(config(name))
    assert shape is not None
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=5e-4)


def test_attention_term_in_both_conventions() -> None:
    full = flops_per_token(config("qwen2.5-3b"), 2048, causal=False)
    half = flops_per_token(config("qwen2.5-3b"), 2048, causal=True)
    assert full is not None and half is not None
    # 3 * layers * heads * (d_qk + d_v) * sequence
    assert full - half == 3 * 36 * 16 * 256 * 2048


def test_a_token_costs_six_flops_per_matrix_weight() -> None:
    shape = shape_of(config("tiny"))
    assert shape is not None
    near_zero = flops_per_token(config("tiny"), 1, causal=True)
    assert near_zero == 6 * shape.matmul_parameters + 3 * 6 * 4 * 64


@pytest.mark.parametrize("name", ["h200", "NVIDIA H200"])
def test_a_card_is_known_by_both_names(name: str) -> None:
    assert peak_flops(name) == 989.4 * TERA


def test_unknown_card_or_model_gives_no_number() -> None:
    assert utilization(config("qwen2.5-3b"), 2048, 1e4, "NVIDIA T1000", causal=True) is None
    assert utilization({"model_type": "mamba"}, 2048, 1e4, "h200", causal=True) is None


def test_utilization_of_a_known_pair() -> None:
    mfu = utilization(config("qwen2.5-3b"), 2048, 25_200, "h200", causal=True)
    assert mfu == pytest.approx(25_200 * 19.42e9 / 989.4e12, rel=1e-3)
