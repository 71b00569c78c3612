"""Sizes of a decoder by its Hugging Face config: parameters by part, and the widths that activations follow from.

Counted by formula for the families below, without torch. `harness.engines.count` counts any other on the meta device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder of equal blocks; some of them may have experts in place of the MLP."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    query_width: int
    """Elements of one token's queries, all heads together; its attention output is as wide."""
    key_width: int
    """Elements of one token's keys; its values are as wide."""
    vocabulary: int
    tied: bool
    attention_matrices: int
    """Weights of one block's attention that take part in matrix products."""
    vectors: int
    """Norms and biases of one block, those of experts apart."""
    norms: int = 2
    """Norms of the residual's width in one block."""
    float_norms: bool = False
    """Whether a norm also keeps the normed input in float32."""
    inner_norms: int = 0
    """Elements of one token that go through a norm of queries or keys in one block."""
    expert_layers: int = 0
    """Blocks with experts."""
    experts: int = 0
    """Experts per such block; memory holds all of them."""
    active_experts: int = 0
    """Experts to which one token is sent."""
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """Width of the shared experts, which every token goes through."""
    expert_vectors: int = 0
    """Biases of one block's experts and router."""
    saved: tuple[float, float] | None = None
    """Bytes that the average block keeps in bfloat16, per token and per pair of tokens, where they were traced."""
    counted: tuple[int, int] | None = None
    """Parameters of the model and of its average block where they were counted instead of computed."""

    @property
    def embedding_parameters(self) -> int:
        """Input embedding (and, when tied, output head)."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """The whole model, tied parameters counted once, all experts held."""
        if self.counted:
            return self.counted[0]
        vectors = self.layers * self.vectors + self.expert_layers * self.expert_vectors + self.hidden
        return self._matrices(self.experts) + vectors + (1 if self.tied else 2) * self.embedding_parameters

    @property
    def block_parameters(self) -> int:
        """All parameters of the average decoder block."""
        if self.counted:
            return self.counted[1]
        vectors = self.layers * self.vectors + self.expert_layers * self.expert_vectors
        return (self._matrices(self.experts) + vectors) // self.layers

    @property
    def active_parameters(self) -> int:
        """Parameters that compute one token."""
        return self.parameters - self._matrices(self.experts) + self._matrices(self.active_experts)

    @property
    def matmul_parameters(self) -> int:
        """Weights that take part in one token's matrix products, the output head among them."""
        return self._matrices(self.active_experts) + self.embedding_parameters

    @property
    def active_intermediate(self) -> int:
        """Width of all MLPs that one token goes through in the average block."""
        dense = (self.layers - self.expert_layers) * self.intermediate
        sparse = self.expert_layers * (self.active_experts * self.expert_intermediate + self.shared_intermediate)
        return (dense + sparse) // self.layers

    def _matrices(self, experts: int) -> int:
        """Weights of all blocks' matrices with so many experts in a block."""
        dense = (self.layers - self.expert_layers) * 3 * self.intermediate
        sparse = 3 * (experts * self.expert_intermediate + self.shared_intermediate) + self.experts
        return self.layers * self.attention_matrices + self.hidden * (dense + self.expert_layers * sparse)


Sizes = dict[str, Any]
"""Fields of a `Shape` in which a family differs from Llama."""


def shape_of(config: dict[str, Any]) -> Shape | None:
    """Sizes of a decoder; None for a model type whose parameters this does not know how to count."""
    family = _FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return None
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    queries = heads * int(config.get("head_dim") or hidden // heads)
    keys = queries // heads * int(config.get("num_key_value_heads") or heads)
    base: Sizes = {
        "layers": int(config["num_hidden_layers"]),
        "hidden": hidden,
        "intermediate": int(config["intermediate_size"]),
        "heads": heads,
        "query_width": queries,
        "key_width": keys,
        "vocabulary": int(config["vocab_size"]),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "attention_matrices": hidden * (2 * queries + 2 * keys),
        "vectors": 2 * hidden + (queries + 2 * keys + hidden if config.get("attention_bias") else 0),
    }
    return Shape(**base | family(config, base))


def _qwen2(_: dict[str, Any], base: Sizes) -> Sizes:
    return {"vectors": 2 * base["hidden"] + base["query_width"] + 2 * base["key_width"]}


def _head_norms(_: dict[str, Any], base: Sizes) -> Sizes:
    """One norm of a head's width for queries and one for keys."""
    return {"vectors": base["vectors"] + 2 * base["query_width"] // base["heads"]} | _inner(base)


def _wide_norms(_: dict[str, Any], base: Sizes) -> Sizes:
    """One norm over all queries and one over all keys."""
    return {"vectors": base["vectors"] + base["query_width"] + base["key_width"]} | _inner(base)


def _inner(base: Sizes) -> Sizes:
    return {"inner_norms": base["query_width"] + base["key_width"]}


def _olmo2(config: dict[str, Any], base: Sizes) -> Sizes:
    return _wide_norms(config, base) | {"float_norms": True}


def _gemma3(config: dict[str, Any], base: Sizes) -> Sizes:
    tied = bool(config.get("tie_word_embeddings", True))
    vectors = base["vectors"] + 2 * base["hidden"] + 2 * base["query_width"] // base["heads"]
    return {"vectors": vectors, "norms": 4, "tied": tied, "float_norms": True} | _inner(base)


def _experts(config: dict[str, Any], base: Sizes, *, width: str, dense: int = 0) -> Sizes:
    """Experts in all blocks but the first `dense` ones; `width`: the key of one expert's width."""
    named = (config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    return {
        "expert_layers": base["layers"] - dense,
        "experts": int(next(value for value in named if value)),
        "active_experts": int(config["num_experts_per_tok"]),
        "expert_intermediate": int(config[width]),
    }


def _qwen3_moe(config: dict[str, Any], base: Sizes) -> Sizes:
    step, dense = int(config.get("decoder_sparse_step") or 1), set(config.get("mlp_only_layers") or ())
    sparse = sum(1 for layer in range(base["layers"]) if layer not in dense and (layer + 1) % step == 0)
    experts = _experts(config, base, width="moe_intermediate_size", dense=base["layers"] - sparse)
    return _head_norms(config, base) | experts


def _olmoe(config: dict[str, Any], base: Sizes) -> Sizes:
    return _wide_norms(config, base) | _experts(config, base, width="intermediate_size")


def _mixtral(config: dict[str, Any], base: Sizes) -> Sizes:
    return _experts(config, base, width="intermediate_size")


def _gpt_oss(config: dict[str, Any], base: Sizes) -> Sizes:
    experts = _experts(config, base, width="intermediate_size")
    # Each expert has biases of gate, up and down, the router one per expert; attention has one sink per head.
    biases = experts["experts"] * (2 * experts["expert_intermediate"] + base["hidden"] + 1)
    bias = base["query_width"] + 2 * base["key_width"] + base["hidden"] if config.get("attention_bias", True) else 0
    return experts | {"expert_vectors": biases, "vectors": 2 * base["hidden"] + bias + base["heads"]}


def _deepseek_v2(config: dict[str, Any], base: Sizes) -> Sizes:
    """Latent attention: keys and values of all heads come from one narrow vector, queries too where a rank is given."""
    hidden, heads, latent = base["hidden"], base["heads"], int(config["kv_lora_rank"])
    plain, rotary, value = (int(config[k]) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    query, rank = heads * (plain + rotary), int(config.get("q_lora_rank") or 0)
    matrices = hidden * rank + rank * query if rank else hidden * query
    matrices += hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden
    experts = _experts(config, base, width="moe_intermediate_size", dense=int(config.get("first_k_dense_replace") or 0))
    shared = int(config.get("n_shared_experts") or 0) * experts["expert_intermediate"]
    return experts | {
        "query_width": (query + heads * value) // 2,
        "key_width": (query + heads * value) // 2,
        "attention_matrices": matrices,
        "vectors": 2 * hidden + latent + rank,
        "shared_intermediate": shared,
    }


def _llama(_: dict[str, Any], base: Sizes) -> Sizes:
    return {}


_FAMILIES: dict[str, Callable[[dict[str, Any], Sizes], Sizes]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "qwen3": _head_norms,
    "olmo2": _olmo2,
    "gemma3_text": _gemma3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek_v2,
}
