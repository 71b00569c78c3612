"""Every family of `config/models/` at toy size: the published config with its widths and counts made small."""

import json
from typing import Any

from tests.engines.specs import MODELS

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 16,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
"""Key of a Hugging Face config -> its toy value, where the published config gives the key at all."""


def families() -> dict[str, dict[str, Any]]:
    """Model type -> the toy of its first config in `config/models/`."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(MODELS.glob("*.json")):
        config = json.loads(path.read_text())
        found.setdefault(config["model_type"], toy(config))
    return found


def toy(config: dict[str, Any]) -> dict[str, Any]:
    """The config with toy sizes; the heads keep to themselves (or not) as published, tokens fit the vocabulary."""
    small = config | {key: value for key, value in SIZES.items() if config.get(key) is not None}
    if config.get("num_key_value_heads") == config["num_attention_heads"]:
        small["num_key_value_heads"] = small["num_attention_heads"]
    tokens = {key: index for index, key in enumerate(("pad_token_id", "bos_token_id", "eos_token_id")) if key in config}
    return small | tokens
