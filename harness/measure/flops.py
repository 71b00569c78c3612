"""Model FLOPs and their utilization (MFU), in both attention conventions. Standard library only.

Formula, per token and for forward plus backward (the convention of torchtitan, `models/utils.py`, and,
with the causal half, of Megatron-LM, `training/training.py`; after PaLM, arXiv:2204.02311, appendix B):

    6 * N_mm + k * L * H * (d_qk + d_v) * S        k = 6: attention in full; k = 3: causal half

N_mm counts the weights that take part in a matrix product: everything but the input embedding, which
counts when it is tied, because then it is the output head; biases and norms are left out.
"""

from dataclasses import dataclass
from typing import Any

TERA = 10**12

PEAK_FLOPS: dict[str, tuple[float, str]] = {
    "a100-40gb": (312 * TERA, "https://www.nvidia.com/en-us/data-center/a100/"),
    "a100-80gb": (312 * TERA, "https://www.nvidia.com/en-us/data-center/a100/"),
    "l4": (121 * TERA, "https://www.nvidia.com/en-us/data-center/l4/"),
    "h100-sxm": (989.4 * TERA, "https://www.nvidia.com/en-us/data-center/h100/"),
    "h100-pcie": (756 * TERA, "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"),
    "h200": (989.4 * TERA, "https://www.nvidia.com/en-us/data-center/h200/"),
    "b200": (2250 * TERA, "https://www.nvidia.com/en-us/data-center/hgx/"),
}
"""Dense bfloat16 peak of a card in FLOP/s (data sheets that print the sparse figure: halved), and where it is given."""

_DEVICE_NAMES = {
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100 80GB PCIe": "a100-80gb",
    "NVIDIA L4": "l4",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a Hugging Face decoder's config says about its sizes."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool

    @property
    def block_matrix_parameters(self) -> int:
        """Weights of one decoder block's seven matrices."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (2 * queries + 2 * keys + 3 * self.intermediate)

    @property
    def block_parameters(self) -> int:
        """All parameters of one decoder block: matrices, biases and norms."""
        bias = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        return self.block_matrix_parameters + bias + 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def embedding_parameters(self) -> int:
        """Input embedding (and, when tied, output head)."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """The whole model, tied parameters counted once."""
        heads = 1 if self.tied else 2
        return self.layers * self.block_parameters + heads * self.embedding_parameters + self.hidden

    @property
    def matmul_parameters(self) -> int:
        """N_mm of the formula above."""
        return self.layers * self.block_matrix_parameters + self.embedding_parameters


def shape_of(config: dict[str, Any]) -> Shape | None:
    """Sizes of a dense Llama-like decoder; None for a model type whose parameters this does not know how to count."""
    if config.get("model_type") not in ("llama", "mistral", "qwen2", "qwen3"):
        return None
    heads = int(config["num_attention_heads"])
    return Shape(
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=config["model_type"] == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=config["model_type"] == "qwen3",
    )


def flops_per_token(config: dict[str, Any], sequence_length: int, *, causal: bool) -> float | None:
    """Forward and backward FLOPs of one token by the module's formula; None for an unknown model type."""
    shape = shape_of(config)
    if shape is None:
        return None
    attention = (3 if causal else 6) * shape.layers * shape.heads * 2 * shape.head_dim * sequence_length
    return float(6 * shape.matmul_parameters + attention)


def peak_flops(accelerator: str) -> float | None:
    """Dense bf16 peak in FLOP/s by accelerator name (`h200`) or device name (`NVIDIA H200`); None when unknown."""
    entry = PEAK_FLOPS.get(_DEVICE_NAMES.get(accelerator, accelerator))
    return entry[0] if entry else None


def utilization(
    config: dict[str, Any], sequence_length: int, tokens_per_s_per_gpu: float, accelerator: str, *, causal: bool
) -> float | None:
    """MFU: model FLOPs per second over the card's peak; None when the card or the model is unknown."""
    per_token, peak = flops_per_token(config, sequence_length, causal=causal), peak_flops(accelerator)
    if per_token is None or peak is None:
        return None
    return per_token * tokens_per_s_per_gpu / peak
