"""What numerics and sharding say the training state must weigh, to tell an engine's merit from its precision."""

from typing import Any

from bench.cells import CellResult
from harness.contract.engines import Numerics
from harness.contract.spec import RunSpec
from harness.contract.units import DTYPE_BYTES

ALL = frozenset({"parameter", "gradient", "optimizer"})
SHARDED: dict[tuple[str, int | None], frozenset[str]] = {
    ("ddp", None): frozenset(),
    ("fsdp2", None): ALL,
    ("zero", 0): frozenset(),
    ("zero", 1): frozenset({"optimizer"}),
    ("zero", 2): frozenset({"gradient", "optimizer"}),
    ("zero", 3): ALL,
}
"""(engine, ZeRO stage) -> the parts of the state that are split over the ranks."""


def whole_state_bytes(numerics: Numerics) -> dict[str, int]:
    """Bytes per parameter of each part before sharding; mixed-precision Adam after arXiv:1910.02054, section 3.1."""
    master = 0 if numerics.master == numerics.parameter else DTYPE_BYTES[numerics.master]
    return {
        "parameter": DTYPE_BYTES[numerics.parameter],
        "gradient": DTYPE_BYTES[numerics.accumulate],
        "optimizer": master + 2 * DTYPE_BYTES[numerics.optimizer_state],
    }


def state_bytes(spec: RunSpec) -> float:
    """Expected bytes of training state per parameter and rank."""
    sharded = SHARDED[spec.engine.name, spec.engine.settings.get("stage")]
    ranks = spec.platform.world_size
    return sum(size / (ranks if part in sharded else 1) for part, size in whole_state_bytes(spec.numerics).items())


def parameter_count(config: dict[str, Any]) -> int | None:
    """Parameters of a decoder like Llama or Qwen2 from its Hugging Face config; None for another architecture."""
    biased = {"llama": False, "mistral": False, "qwen2": True}.get(str(config.get("model_type")))
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if biased is None or any(not isinstance(config.get(key), int) for key in keys):
        return None
    hidden, inner, layers, heads, vocabulary = (int(config[key]) for key in keys)
    head = int(config.get("head_dim") or hidden // heads)
    query, pair = heads * head, int(config.get("num_key_value_heads") or heads) * head
    attention = 2 * hidden * query + 2 * hidden * pair + (query + 2 * pair if biased else 0)
    block = attention + 3 * hidden * inner + 2 * hidden
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return embeddings + layers * block + hidden


def parameters_of(result: CellResult) -> int | None:
    """Parameters of a cell's model: as measured, else counted from its config."""
    for run in result.finished:
        measured = run.newest.record.measured if run.newest else None
        if measured and measured.parameters:
            return measured.parameters
    return parameter_count(result.cell.spec.model.config) if result.cell.spec else None
