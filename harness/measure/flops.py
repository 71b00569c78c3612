"""Model FLOPs and their utilization (MFU), in both attention conventions. Standard library only.

Formula, per token and for forward plus backward (the convention of torchtitan, `models/utils.py`, and,
with the causal half, of Megatron-LM, `training/training.py`; after PaLM, arXiv:2204.02311, appendix B):

    6 * N_mm + k * L * H * (d_qk + d_v) * S        k = 6: attention in full; k = 3: causal half

N_mm counts the weights that take part in a matrix product: everything but the input embedding, which
counts when it is tied, because then it is the output head; biases and norms are left out.
"""

from typing import Any

from harness.measure.shapes import shape_of

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


def card_of(device: str) -> str | None:
    """The card's name in `PEAK_FLOPS` by its device name (`NVIDIA H200`); None when unknown."""
    return _DEVICE_NAMES.get(device)


def flops_per_token(config: dict[str, Any], sequence_length: int, *, causal: bool) -> float | None:
    """Forward and backward FLOPs of one token by the module's formula; None for an unknown model type."""
    shape = shape_of(config)
    if shape is None:
        return None
    attention = (3 if causal else 6) * shape.layers * 2 * shape.query_width * sequence_length
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
