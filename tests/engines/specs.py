"""Specs for tests: any named config in any arm on two CPU ranks."""

import json
from pathlib import Path
from typing import Any

from harness.contract.codec import encode
from harness.contract.engines import CONFIGS, ENGINES, resolve_settings
from harness.contract.spec import RunSpec, parse_spec

MODELS = Path(__file__).resolve().parents[2] / "config" / "models"


SMALL: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
"""A model whose steps take milliseconds even where bfloat16 is emulated."""


def make_spec(config: str = "ddp", arm: str = "matched", **changes: Any) -> RunSpec:
    """A spec of `config`; `changes` are dotted keys with `__` for the dot, for example `data__micro_batch=2`."""
    entry = CONFIGS[config]
    engine = ENGINES[entry.engine]
    numerics = engine.matched if arm == "matched" else engine.shipped
    implementation = engine.optimizer("cpu", entry.offloads) if arm == "defaults" else "torch-fused"
    plain: dict[str, Any] = {
        "spec_version": 1,
        "identity": {"study": "test", "config": config, "arm": arm, "repeat": 1, "attempt": 1},
        "platform": {
            "name": "cpu-x2",
            "device": "cpu",
            "world_size": 2,
            "accelerator": "cpu",
            "interconnect": "loopback",
        },
        "model": {"name": "tiny", "config": json.loads((MODELS / "tiny.json").read_text())},
        "data": {"sequence_length": 64, "micro_batch": 1},
        "optimizer": {"implementation": implementation, "learning_rate": 1e-3},
        "numerics": encode(numerics),
        "protocol": {"warmup_steps": 5, "timed_steps": 3},
        "engine": {
            "name": entry.engine,
            "launcher": engine.launcher,
            "settings": resolve_settings(entry.engine, entry.settings),
        },
        "environment": {},
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        place = plain
        for part in path:
            place = place[part]
        place[last] = value
    return parse_spec(plain)
