"""Models held back when the formulas were made: parameters are exact. Totals are those of the meta device."""

from typing import Any

import pytest

from harness.measure.shapes import shape_of

TIED: dict[str, Any] = {"tie_word_embeddings": True}
HELD_BACK: dict[str, tuple[str, tuple[int, ...], dict[str, Any], int]] = {
    "llama-2-7b": ("llama", (32000, 4096, 11008, 32, 32, 32), {}, 6_738_415_616),
    "llama-2-13b": ("llama", (32000, 5120, 13824, 40, 40, 40), {}, 13_015_864_320),
    "llama-3.1-70b": ("llama", (128256, 8192, 28672, 80, 64, 8), {}, 70_553_706_496),
    "llama-3.2-1b": ("llama", (128256, 2048, 8192, 16, 32, 8), TIED | {"head_dim": 64}, 1_235_814_400),
    "llama-3.2-3b": ("llama", (128256, 3072, 8192, 28, 24, 8), TIED | {"head_dim": 128}, 3_212_749_824),
    "tinyllama-1.1b": ("llama", (32000, 2048, 5632, 22, 32, 4), {}, 1_100_048_384),
    "smollm2-135m": ("llama", (49152, 576, 1536, 30, 9, 3), TIED, 134_515_008),
    "smollm2-1.7b": ("llama", (49152, 2048, 8192, 24, 32, 32), TIED, 1_711_376_384),
    "mistral-7b-v0.1": ("mistral", (32000, 4096, 14336, 32, 32, 8), {}, 7_241_732_096),
    "mistral-nemo-12b": ("mistral", (131072, 5120, 14336, 40, 32, 8), {"head_dim": 128}, 12_247_782_400),
    "mixtral-8x7b": (
        "mixtral",
        (32000, 4096, 14336, 32, 32, 8),
        {"num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
    ),
    "qwen2.5-14b": ("qwen2", (152064, 5120, 13824, 48, 40, 8), {}, 14_770_033_664),
    "qwen2.5-32b": ("qwen2", (152064, 5120, 27648, 64, 40, 8), {}, 32_763_876_352),
    "qwen2.5-72b": ("qwen2", (152064, 8192, 29568, 80, 64, 8), {}, 72_706_203_648),
    "qwen3-0.6b": ("qwen3", (151936, 1024, 3072, 28, 16, 8), TIED | {"head_dim": 128}, 596_049_920),
    "qwen3-4b": ("qwen3", (151936, 2560, 9728, 36, 32, 8), TIED | {"head_dim": 128}, 4_022_468_096),
    "qwen3-14b": ("qwen3", (151936, 5120, 17408, 40, 40, 8), {"head_dim": 128}, 14_768_307_200),
    "qwen3-32b": ("qwen3", (151936, 5120, 25600, 64, 64, 8), {"head_dim": 128}, 32_762_123_264),
    "qwen3-235b-a22b": (
        "qwen3_moe",
        (151936, 4096, 12288, 94, 64, 4),
        {
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1536,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        235_093_634_560,
    ),
    "olmo-2-13b": ("olmo2", (100352, 5120, 13824, 40, 40, 40), {}, 13_716_198_400),
    "gpt-oss-120b": (
        "gpt_oss",
        (201088, 2880, 2880, 36, 64, 8),
        {"head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4},
        116_829_156_672,
    ),
    "gemma-3-270m": ("gemma3_text", (262144, 640, 2048, 18, 4, 1), TIED | {"head_dim": 256}, 268_098_176),
}
"""Model -> type; vocabulary, width, MLP width, blocks, heads, key heads; what else its config says; parameters."""
KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)


@pytest.mark.parametrize("name", HELD_BACK)
def test_held_back_models_are_counted_exactly(name: str) -> None:
    kind, widths, more, parameters = HELD_BACK[name]
    config = {"model_type": kind, "tie_word_embeddings": False} | dict(zip(KEYS, widths, strict=True)) | more
    shape = shape_of(config)
    assert shape is not None
    assert shape.parameters == parameters
