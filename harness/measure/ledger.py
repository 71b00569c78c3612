"""Predicted memory of one rank by part, before anything runs. Pure, standard library only.

A ledger is a prediction, not a measurement. It is shown beside the measured peak, so that a reader sees which part
fills the card and where the prediction is wrong. The engine's descriptor predicts its own part; activations and logits
follow from model and data alone.
"""

from dataclasses import replace

from harness.contract.codec import encode
from harness.contract.engines import ENGINES, parse_settings
from harness.contract.engines.memory import Ledger, Sizes
from harness.contract.engines.traffic import Message
from harness.contract.spec import RunSpec
from harness.contract.units import DTYPE_BYTES, MIB
from harness.measure.shapes import Shape, shape_of

WORKSPACE_BYTES = 72 * MIB
"""What cuBLAS and cuBLASLt allocate through torch on a Hopper card (32 MiB each), and a small remainder."""


def predict(spec: RunSpec, shape: Shape | None = None) -> Ledger | None:
    """The ledger of a spec; None for an engine without ledger and for a model whose parameters cannot be counted.

    `shape`: the model's sizes, if they are known from a source other than its config.
    """
    shape = shape or shape_of(spec.model.config)
    if shape is None:
        return None
    own = _of_engine(spec, **_counts(shape))
    if own is None:
        return None
    kept, block = _activations(spec, shape)
    if spec.data.gradient_accumulation > 1:
        own = replace(own, standing_gradients=own.gradients)
    return replace(
        own,
        activations=kept,
        block=block,
        recomputed=block if spec.model.activation_checkpointing else 0,
        logits=_logits(spec, shape),
        workspace=WORKSPACE_BYTES if spec.platform.device == "cuda" else 0,
    )


def predicted_peak_bytes(spec: RunSpec) -> int | None:
    """Predicted peak of one rank's memory, the device's or else the host's; None where `predict` gives None."""
    ledger = predict(spec)
    if ledger is None:
        return None
    return ledger.device_peak + (ledger.host if spec.platform.device == "cpu" else 0)


def messages(spec: RunSpec, shape: Shape | None = None) -> tuple[Message, ...] | None:
    """What one micro-step sends; None for an engine that does not say, and for a model that cannot be counted."""
    shape = shape or shape_of(spec.model.config)
    traffic = ENGINES[spec.engine.name].traffic
    if shape is None or traffic is None:
        return None
    return traffic(parse_settings(spec.engine.name, spec.engine.settings), _sizes(spec, **_counts(shape)))


def state_bytes_per_parameter(spec: RunSpec) -> float | None:
    """Training state of one rank, device and host, in bytes per model parameter; None for an engine without ledger."""
    ranks = spec.platform.world_size
    # Count as many parameters as there are ranks, so that every part divides evenly.
    own = _of_engine(spec, parameters=ranks, layers=0, block_parameters=0, embedding_parameters=0)
    return None if own is None else (own.state + own.host) / ranks


def _counts(shape: Shape) -> dict[str, int]:
    return {
        "parameters": shape.parameters,
        "layers": shape.layers,
        "block_parameters": shape.block_parameters,
        "embedding_parameters": shape.embedding_parameters,
    }


def _of_engine(spec: RunSpec, **counts: int) -> Ledger | None:
    ledger = ENGINES[spec.engine.name].ledger
    if ledger is None:
        return None
    return ledger(parse_settings(spec.engine.name, spec.engine.settings), _sizes(spec, **counts))


def _sizes(spec: RunSpec, **counts: int) -> Sizes:
    return Sizes(
        world_size=spec.platform.world_size,
        ranks_per_node=spec.platform.ranks_per_node,
        bytes={role: DTYPE_BYTES[dtype] for role, dtype in encode(spec.numerics).items()},
        checkpointing=spec.model.activation_checkpointing,
        **counts,
    )


def _activations(spec: RunSpec, shape: Shape) -> tuple[int, int]:
    """Bytes that forward keeps for backward in all blocks and the last norm, and those of one whole block.

    Counted from Hugging Face's block. Per token, in elements: a norm keeps its input as float32, the normed input and
    its output, a norm of queries or keys all but its output; attention keeps q and k after rotation, v, its output and
    one float32 a head; the MLP keeps gate, up, activation and product.
    In a compiled block a norm keeps its input and its output, and the MLP computes its product again, unless the
    engine's hooks split the block. Each expert that a token goes to keeps an MLP's tensors, its input and its output.
    """
    tokens = spec.data.micro_batch * spec.data.sequence_length
    size = DTYPE_BYTES[spec.numerics.compute]
    settings = parse_settings(spec.engine.name, spec.engine.settings)
    compiled = bool(getattr(settings, "compile", False))
    normed = 4 if shape.float_norms else size
    norm = shape.hidden * (2 * size if compiled else 4 + normed + size)
    attention = (
        (2 * shape.query_width + 2 * shape.key_width) * size + 4 * shape.heads + (4 + normed) * shape.inner_norms
    )
    whole = compiled and not ENGINES[spec.engine.name].hooks_in_blocks(settings)
    mlp = (3 if whole else 4) * shape.active_intermediate * size + 2 * shape.active_experts * shape.hidden * size
    block = tokens * (shape.norms * norm + attention + mlp)
    if spec.model.attention == "eager":
        block += spec.data.micro_batch * shape.heads * spec.data.sequence_length**2 * (4 + size)
    if shape.saved:
        linear, square = shape.saved
        block = int(tokens * (linear + square * spec.data.sequence_length) * size / DTYPE_BYTES["bfloat16"])
    last = tokens * shape.hidden * (4 + 2 * size)
    if spec.model.activation_checkpointing == "selective":
        width = 2 * shape.query_width + 2 * shape.key_width + 2 * shape.active_intermediate + 3 * shape.hidden
        return shape.layers * tokens * (width * size + 4 * shape.heads) + last, block
    if spec.model.activation_checkpointing:
        return shape.layers * tokens * shape.hidden * size + last, block
    return shape.layers * block + last, block


def _logits(spec: RunSpec, shape: Shape) -> int:
    """Log-softmax in float32, its gradient and that of the logits: the logits themselves are freed by then.

    A compiled loss (harness.engines.model) keeps the logits and makes their gradient, both in the compute dtype.
    """
    tokens = spec.data.micro_batch * spec.data.sequence_length
    size = DTYPE_BYTES[spec.numerics.compute]
    return tokens * shape.vocabulary * (2 * size if spec.engine.settings.get("compile") else 3 * 4)
