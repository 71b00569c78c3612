"""Predicted memory of one rank by part, before anything runs. Pure, standard library only.

A ledger is a model, not a measurement: it stands beside the measured peak so that a reader sees which
part fills the card and where the prediction fails. Parts, in bytes on the device unless said otherwise:

    parameters, gradients, optimizer   training state, by the numerics and the sharding (same formulas as
                                       the engines' `expected_bytes_per_parameter`); offloaded parts are
                                       in `host` instead
    gathered                           whole parameters beyond a rank's part, when backward begins
    unreduced                          whole gradients of the unit whose backward runs, before they are reduced
    activations                        what forward keeps for backward, all decoder blocks
    logits                             the head's output and the float32 copies of Hugging Face's loss
    buckets                            communication buffers that an engine allocates for itself
    update                             temporary copies while the optimizer steps

Three moments compete for the peak. When backward begins, everything forward kept is there and gradients
are not, unless an engine holds a buffer for them all the time; when it ends, only a unit's worth is
beside the state; and the step adds its temporary copies.
"""

from dataclasses import asdict, dataclass
from typing import Any

from harness.contract.engines import DdpSettings, FsdpSettings, ZeroSettings, parse_settings
from harness.contract.spec import RunSpec
from harness.contract.units import DTYPE_BYTES, MIB
from harness.measure.flops import Shape, shape_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """Predicted bytes of one rank."""

    parameters: int
    gradients: int
    optimizer: int
    standing_gradients: int
    """The part of the gradients that is allocated even when there are none."""
    gathered: int
    unreduced: int
    activations: int
    logits: int
    buckets: int
    update: int
    host: int
    """In host memory, all parts together; not part of the device's peak."""

    @property
    def state(self) -> int:
        """Parameters, gradients and optimizer state on the device."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def loss_peak(self) -> int:
        """Device bytes when backward begins."""
        kept = self.gathered + self.activations + self.logits + self.buckets
        return self.parameters + self.optimizer + self.standing_gradients + kept

    @property
    def backward_peak(self) -> int:
        """Device bytes when backward ends."""
        return self.state + self.gathered + self.unreduced + self.buckets

    @property
    def step_peak(self) -> int:
        """Device bytes while the optimizer steps."""
        return self.state + self.buckets + self.update

    @property
    def device_peak(self) -> int:
        """Device bytes at the fullest of the three moments."""
        return max(self.loss_peak, self.backward_peak, self.step_peak)

    def to_json(self) -> dict[str, Any]:
        """The parts, the peak and the phase it falls in."""
        peaks = {"backward": max(self.loss_peak, self.backward_peak), "step": self.step_peak}
        return {
            "parts_bytes": asdict(self),
            "device_peak_bytes": self.device_peak,
            "peak_phase": max(peaks, key=lambda phase: peaks[phase]),
        }


def predict(spec: RunSpec) -> Ledger | None:
    """The ledger of a spec; None for a model type whose parameters cannot be counted from its config."""
    shape = shape_of(spec.model.config)
    if shape is None:
        return None
    settings = parse_settings(spec.engine.name, spec.engine.settings)
    if isinstance(settings, FsdpSettings):
        engine = _fsdp(spec, settings, shape)
    elif isinstance(settings, ZeroSettings):
        engine = _zero(spec, settings, shape)
    else:
        engine = _ddp(spec, settings, shape)
    return Ledger(activations=_activations(spec, shape), logits=_logits(spec, shape), **engine)


def predicted_peak_bytes(spec: RunSpec) -> int | None:
    """Predicted peak of one rank's memory, the device's or, without a device, the host's; None like `predict`."""
    ledger = predict(spec)
    if ledger is None:
        return None
    return ledger.device_peak + (ledger.host if spec.platform.device == "cpu" else 0)


def _bytes(spec: RunSpec, role: str) -> int:
    return DTYPE_BYTES[getattr(spec.numerics, role)]


def _moments(spec: RunSpec) -> int:
    return 2 * _bytes(spec, "optimizer_state")


def _ddp(spec: RunSpec, settings: DdpSettings, shape: Shape) -> dict[str, int]:
    n = shape.parameters
    casts = spec.numerics.compute != spec.numerics.parameter
    compressed = spec.numerics.reduce != spec.numerics.parameter
    bucket = int(settings.bucket_cap_mb * MIB)
    return {
        "parameters": n * _bytes(spec, "parameter"),
        "gradients": n * _bytes(spec, "parameter"),
        "optimizer": n * _moments(spec),
        "standing_gradients": 0,
        # Cast copies live from a block's forward to its backward.
        "gathered": n * _bytes(spec, "compute") if casts else 0,
        "unreduced": 0,
        "buckets": (0 if settings.gradient_as_bucket_view else n * _bytes(spec, "parameter"))
        + (bucket if compressed else 0),
        "update": 0,
        "host": 0,
    }


def _fsdp(spec: RunSpec, settings: FsdpSettings, shape: Shape) -> dict[str, int]:
    n, world = shape.parameters, spec.platform.world_size
    unit = shape.block_parameters * settings.blocks_per_group
    root = n - shape.layers * shape.block_parameters
    # Resharding keeps the unit at work, those prefetched, and the root; otherwise all of them stay.
    gathered = root + (1 + max(1, settings.prefetch_depth)) * unit if settings.reshard_after_forward else n
    gathered = min(gathered, n)
    # In backward a unit's whole gradient lies beside its reduce-scatter input, the next one behind it.
    gradients = max(unit, root) * _bytes(spec, "compute") + 2 * max(unit, root) * _bytes(spec, "reduce")
    state = {
        "parameters": n * _bytes(spec, "parameter") // world,
        "gradients": n * _bytes(spec, "parameter") // world,
        "optimizer": n * _moments(spec) // world,
    }
    host = sum(state.values()) if settings.offload else 0
    return {
        **(dict.fromkeys(state, 0) if settings.offload else state),
        "standing_gradients": 0,
        "gathered": gathered * _bytes(spec, "compute"),
        "unreduced": gradients,
        "buckets": 0,
        "update": 0,
        "host": host,
    }


def _zero(spec: RunSpec, settings: ZeroSettings, shape: Shape) -> dict[str, int]:
    n, world, stage = shape.parameters, spec.platform.world_size, settings.stage
    grad_bytes, reduce_bytes = _bytes(spec, "accumulate"), _bytes(spec, "reduce")
    parameters = n * _bytes(spec, "parameter") // (world if stage == 3 else 1)
    gradients = n * grad_bytes // (world if stage >= 2 else 1)
    optimizer = n * (_bytes(spec, "master") + _moments(spec)) // (world if stage >= 1 else 1)
    # Stage 3 allocates the buffer for its part of the gradients once.
    standing = gradients if stage == 3 else 0
    host, update = 0, 4 * n // (world if stage >= 1 else 1)
    if settings.offload_optimizer:
        # The gradient's part goes to the host, in the master's dtype; stage 3 keeps its own copy there as well.
        host += optimizer + 4 * n // world + standing
        gradients, standing = (gradients if stage == 1 else 0), 0
        optimizer, update = 0, 0
    if settings.offload_param:
        host += parameters
        parameters = 0
    elif stage == 3:
        update = min(update, 4 * settings.sub_group_size)
    if stage == 1:
        # By then the other ranks' gradients are freed.
        update = max(0, update - (gradients - gradients // world))
    bucket = min(settings.reduce_bucket_size, n)
    filled = settings.reduce_bucket_size if stage >= 1 and settings.contiguous_gradients else 0
    copies = 2 if settings.overlap_comm and stage in (1, 2) else 1
    live = settings.prefetch_bucket_size + shape.embedding_parameters + 2 * shape.block_parameters
    if settings.max_reuse_distance > 0:
        live = max(live, settings.max_live_parameters)
    return {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "standing_gradients": standing,
        "gathered": min(live, n) * _bytes(spec, "compute") if stage == 3 else 0,
        # Gradients wait in the bucket, which is counted below.
        "unreduced": 0,
        "buckets": filled * grad_bytes * copies + (bucket * reduce_bytes if reduce_bytes != grad_bytes else 0),
        "update": update,
        "host": host,
    }


def _activations(spec: RunSpec, shape: Shape) -> int:
    """Bytes that forward keeps for backward in all blocks, counted from Hugging Face's Llama-like block.

    Per token and block, in elements: two norms keep their input as float32 and their output, attention
    keeps q, k, v before and after rotation and its output, the MLP keeps gate, up, activation and product.
    """
    tokens = spec.data.micro_batch * spec.data.sequence_length
    size = _bytes(spec, "compute")
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
    size = _bytes(spec, "compute")
    return tokens * shape.vocabulary * (2 * size if spec.engine.settings.get("compile") else size + 3 * 4)
