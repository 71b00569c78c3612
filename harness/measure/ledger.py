"""Predicted memory of one rank by part, before anything runs. Pure, standard library only.

A ledger is a model, not a measurement: it stands beside the measured peak so that a reader sees which part fills the
card and where the prediction fails. The engine's descriptor predicts its own part; activations and logits follow from
model and data alone.
"""

from dataclasses import replace

from harness.contract.codec import encode
from harness.contract.engines import ENGINES, parse_settings
from harness.contract.engines.memory import Ledger, Sizes
from harness.contract.spec import RunSpec
from harness.contract.units import DTYPE_BYTES
from harness.measure.flops import Shape, shape_of


def predict(spec: RunSpec) -> Ledger | None:
    """The ledger of a spec; None for an engine without ledger and for a model whose parameters cannot be counted."""
    shape = shape_of(spec.model.config)
    if shape is None:
        return None
    own = _of_engine(
        spec,
        parameters=shape.parameters,
        layers=shape.layers,
        block_parameters=shape.block_parameters,
        embedding_parameters=shape.embedding_parameters,
    )
    if own is None:
        return None
    return replace(own, activations=_activations(spec, shape), logits=_logits(spec, shape))


def predicted_peak_bytes(spec: RunSpec) -> int | None:
    """Predicted peak of one rank's memory, the device's or else the host's; None where `predict` gives None."""
    ledger = predict(spec)
    if ledger is None:
        return None
    return ledger.device_peak + (ledger.host if spec.platform.device == "cpu" else 0)


def state_bytes_per_parameter(spec: RunSpec) -> float | None:
    """Training state of one rank, device and host, in bytes per model parameter; None for an engine without ledger."""
    ranks = spec.platform.world_size
    # As many parameters as ranks: every part divides evenly.
    own = _of_engine(spec, parameters=ranks, layers=0, block_parameters=0, embedding_parameters=0)
    return None if own is None else (own.state + own.host) / ranks


def _of_engine(spec: RunSpec, **counts: int) -> Ledger | None:
    ledger = ENGINES[spec.engine.name].ledger
    if ledger is None:
        return None
    sizes = Sizes(
        world_size=spec.platform.world_size,
        bytes={role: DTYPE_BYTES[dtype] for role, dtype in encode(spec.numerics).items()},
        **counts,
    )
    return ledger(parse_settings(spec.engine.name, spec.engine.settings), sizes)


def _activations(spec: RunSpec, shape: Shape) -> int:
    """Bytes that forward keeps for backward in all blocks, counted from Hugging Face's Llama-like block.

    Per token and block, in elements: two norms keep their input as float32 and their output, attention
    keeps q, k, v before and after rotation and its output, the MLP keeps gate, up, activation and product.
    """
    tokens = spec.data.micro_batch * spec.data.sequence_length
    size = DTYPE_BYTES[spec.numerics.compute]
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = 2 * shape.hidden * (4 + 2 * size)
    attention = (4 * queries + 5 * keys) * size
    mlp = 4 * shape.intermediate * size
    block = tokens * (norms + attention + mlp)
    if spec.model.attention == "eager":
        block += spec.data.micro_batch * shape.heads * spec.data.sequence_length**2 * (4 + size)
    if spec.model.activation_checkpointing:
        return shape.layers * tokens * shape.hidden * size + block
    return shape.layers * block


def _logits(spec: RunSpec, shape: Shape) -> int:
    """Logits in the compute dtype, their float32 copy, its log-softmax and its gradient.

    A compiled loss (harness.engines.model) keeps the logits and makes their gradient, both in the compute dtype.
    """
    tokens = spec.data.micro_batch * spec.data.sequence_length
    size = DTYPE_BYTES[spec.numerics.compute]
    return tokens * shape.vocabulary * (2 * size if spec.engine.settings.get("compile") else size + 3 * 4)
