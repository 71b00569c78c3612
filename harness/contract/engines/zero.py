"""DeepSpeed ZeRO, stages 0 to 3, with and without offload."""

from typing import Any, Literal

from msgspec import Struct

from harness.contract.codec import Int, NotNegativeInt, PositiveInt, defaults_of
from harness.contract.engines.descriptor import Config, Descriptor, Sharded, Trials, bf16_compute
from harness.contract.engines.memory import Ledger, Sizes
from harness.contract.engines.traffic import Among, Kind, Message
from harness.contract.errors import SpecError

_ADDED = {
    "memory_efficient_linear": (3,),
    "check_grad_overflow": (1, 2),
    "quantized_weights": (3,),
    "quantized_gradients": (3,),
    "secondary_in_node": (3,),
}
"""Setting that was added after specs were stored -> the stages at which it has an effect."""


class ZeroSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ZeRO. The defaults are DeepSpeed 0.19's own, written out; no "auto" anywhere."""

    stage: Literal[0, 1, 2, 3] = 3
    offload_optimizer: bool = False
    offload_param: bool = False
    """Stage 3 only."""
    pin_memory: bool = True
    overlap_comm: bool = True
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    use_multi_rank_bucket_allreduce: bool = True
    """Stages 1 and 2: all-reduce buckets that span ranks, in place of reduce-scatter."""
    round_robin_gradients: bool = False
    reduce_bucket_size: PositiveInt = 500_000_000
    """Elements per reduction bucket."""
    allgather_bucket_size: PositiveInt = 500_000_000
    """Elements per all-gather bucket (stages 1 and 2)."""
    prefetch_bucket_size: NotNegativeInt = 50_000_000
    """Elements prefetched ahead of use (stage 3)."""
    param_persistence_threshold: NotNegativeInt = 100_000
    """Parameters with fewer elements stay replicated (stage 3)."""
    max_live_parameters: NotNegativeInt = 1_000_000_000
    max_reuse_distance: Int = 1_000_000_000
    sub_group_size: PositiveInt = 1_000_000_000
    leaf_blocks: bool = False
    """Treat each decoder block as one leaf: one gather per block, as FSDP2 does (stage 3)."""
    memory_efficient_linear: bool = True
    """Stage 3: DeepSpeed's linear function, which keeps no gathered weight for backward."""
    check_grad_overflow: bool = True
    """Stages 1 and 2: look for infinite gradients before every update, which makes the host wait for the device."""
    quantized_weights: bool = False
    """Stage 3, GPUs only: ZeRO++ gathers parameters as 8-bit integers. Not the same training: the gate will say so."""
    quantized_gradients: bool = False
    """Stage 3, GPUs of several nodes only: ZeRO++ reduces gradients as 4-bit integers. Not the same training either."""
    secondary_in_node: bool = False
    """hpZ (ZeRO++, arXiv:2306.10209): every node keeps a second copy of the parameters, sharded over its ranks, so that
    backward gathers inside the node (stage 3)."""
    deepcompile: bool = False
    """DeepSpeed's own compiler passes; GPUs only."""
    compile: bool = False
    """torch.compile each decoder block and the loss."""

    def __post_init__(self) -> None:
        for name, stages in _ADDED.items():
            if self.stage not in stages and getattr(self, name) != defaults_of(ZeroSettings)[name]:
                wanted = " or ".join(map(str, stages))
                raise SpecError(f"{name}: has an effect at stage {wanted} only, found stage {self.stage}; leave it out")
        if self.offload_param and self.stage != 3:
            raise SpecError(f"offload_param: needs stage 3, found stage {self.stage}")
        if self.secondary_in_node and self.offload_param:
            raise SpecError(
                "secondary_in_node: found with offload_param, which keeps parameters in host memory; choose one"
            )
        if self.offload_optimizer and self.stage == 0:
            raise SpecError("offload_optimizer: needs stage 1, 2 or 3, found stage 0")


_BUCKETS: Trials = (
    {},
    {"overlap_comm": True},
    {"reduce_bucket_size": 50_000_000, "allgather_bucket_size": 50_000_000},
    {"compile": True},
    {"compile": True, "overlap_comm": True},
    {"deepcompile": True},
)
_TRIALS: tuple[Trials, ...] = (
    # Stage 0 has no bucket of its own to set, so each of its three settings is tried twice.
    2 * ({}, {"compile": True}, {"deepcompile": True}),
    _BUCKETS,
    _BUCKETS,
    (
        {},
        {"leaf_blocks": True},
        {"param_persistence_threshold": 1_000_000, "prefetch_bucket_size": 200_000_000},
        {"compile": True},
        {"compile": True, "leaf_blocks": True},
        {"deepcompile": True},
    ),
)
"""By stage."""


def _ledger(settings: ZeroSettings, sizes: Sizes) -> Ledger:
    """State by the ZeRO paper (arXiv:1910.02054), section 3: P + G + 12, where stages 1, 2, 3 divide 12, G, P in turn.

    P and G are the bytes of one parameter and one gradient (2 each in bfloat16), 12 those of master and moments.
    Offload adds a float32 copy of the rank's gradients on the host, where the optimizer steps. Not counted: padding,
    and parameters below the persistence threshold, which stay whole at stage 3.
    """
    n, each, stage = sizes.parameters, sizes.bytes, settings.stage
    over_optimizer, over_gradients, over_parameters = (sizes.world_size if stage >= s else 1 for s in (1, 2, 3))
    parameters = n * each["parameter"] // over_parameters
    gradients = n * each["accumulate"] // over_gradients
    optimizer = n * (each["master"] + 2 * each["optimizer_state"]) // over_optimizer
    # Stage 3 allocates the buffer for its part of the gradients once.
    standing = gradients if stage == 3 else 0
    host, update = 0, 4 * n // over_optimizer
    if settings.offload_optimizer:
        # The gradient's part goes to the host, in the master's dtype; stage 3 keeps its own copy there as well.
        host += optimizer + 4 * n // sizes.world_size + standing
        gradients, standing = (gradients if stage == 1 else 0), 0
        optimizer, update = 0, 0
    if settings.offload_param:
        host += parameters
        parameters = 0
    elif stage == 3:
        update = min(update, 4 * settings.sub_group_size)
    elif stage in (1, 2) and not settings.offload_optimizer:
        # The rank's part of the gradients is copied flat before it is cast for the masters.
        update += n * each["accumulate"] // sizes.world_size
    if stage == 1:
        # When backward ends, the other ranks' gradients are already freed.
        update = max(0, update - (gradients - gradients // sizes.world_size))
    buckets = _buckets(settings, sizes)
    if settings.secondary_in_node:
        buckets += n * each["compute"] // sizes.ranks_per_node
    return Ledger(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        standing_gradients=standing,
        gathered=min(_live(settings, sizes), n) * each["compute"] if stage == 3 else 0,
        # Stages 1 and 2 allocate their buckets when backward fills them and free them after it.
        unreduced=buckets if stage in (1, 2) else 0,
        buckets=buckets if stage == 3 else 0,
        update=update,
        host=host,
    )


def _live(settings: ZeroSettings, sizes: Sizes) -> int:
    """Gathered parameters that stage 3 lets live at once; one rank that holds them all on its device gathers none."""
    if sizes.world_size == 1 and not settings.offload_param:
        return 0
    live = settings.prefetch_bucket_size + sizes.embedding_parameters + 2 * sizes.block_parameters
    return max(live, settings.max_live_parameters) if settings.max_reuse_distance > 0 else live


def _buckets(settings: ZeroSettings, sizes: Sizes) -> int:
    each, stage = sizes.bytes, settings.stage
    filled = settings.reduce_bucket_size if stage >= 1 and settings.contiguous_gradients else 0
    copies = 2 if settings.overlap_comm and stage in (1, 2) else 1
    if stage == 3:
        # Gradients are put into the bucket in the dtype in which they are reduced.
        return filled * each["reduce"]
    bucket = min(settings.reduce_bucket_size, sizes.parameters) if stage else 0
    cast = bucket * each["reduce"] if each["reduce"] != each["accumulate"] else 0
    return filled * each["accumulate"] * copies + cast


def _traffic(settings: ZeroSettings, sizes: Sizes) -> tuple[Message, ...]:
    """Reduce the gradients by buckets; stages 1 and 2 gather what was updated, stage 3 before forward and backward.

    Stage 3 gathers its root (embeddings, head, last norm) once, because it is in use until backward needs it. Not
    modelled: parameters below the persistence threshold are never gathered.
    """
    n, each, stage = sizes.parameters, sizes.bytes, settings.stage
    whole = stage == 0 or (stage < 3 and (settings.use_multi_rank_bucket_allreduce or not settings.reduce_scatter))
    kind: Kind = "all_reduce" if whole else "reduce_scatter"
    reduced = Message(kind=kind, bytes=n * each["reduce"], calls=-(-n // settings.reduce_bucket_size))
    if stage == 0:
        return (reduced,)
    if stage < 3:
        calls = -(-n // settings.allgather_bucket_size)
        return reduced, Message(kind="all_gather", bytes=n * each["parameter"], calls=calls)
    blocks = sizes.layers * sizes.block_parameters
    # Each of a block's weight matrices is gathered by itself, about seven of them; a leaf is gathered as a whole.
    calls = sizes.layers * (1 if settings.leaf_blocks else _MATRICES)
    again: Among = "node" if settings.secondary_in_node else "all"
    forward = Message(kind="all_gather", bytes=n * each["compute"], calls=calls + 1)
    if n <= _live(settings, sizes):
        # Nothing is freed between forward and backward.
        return reduced, forward
    return reduced, forward, Message(kind="all_gather", bytes=blocks * each["compute"], calls=calls, among=again)


_MATRICES = 7
"""Weight matrices of one decoder block: queries, keys, values, output, gate, up, down."""
_SHARDED: tuple[Sharded, ...] = ("nothing", "optimizer", "gradients", "parameters")


def _config(name: str, **settings: Any) -> Config:
    full = ZeroSettings(**settings)
    return Config(
        name=name,
        engine="zero",
        shards=_SHARDED[full.stage],
        offloads=full.offload_optimizer,
        replicates="parameters" if full.secondary_in_node else "",
        # Only several nodes make it differ from sharding over all ranks.
        usual=not full.secondary_in_node,
        settings=settings,
    )


ZERO = Descriptor(
    name="zero",
    launcher="deepspeed",
    settings=ZeroSettings,
    added=frozenset(_ADDED),
    configs=(
        _config("zero-0", stage=0),
        _config("zero-1", stage=1, overlap_comm=False),
        _config("zero-2", stage=2, overlap_comm=False),
        _config("zero-3", stage=3),
        _config("zero-3-offload", stage=3, offload_optimizer=True, offload_param=True),
        _config("zero-3-hpz", stage=3, secondary_in_node=True),
    ),
    # It keeps a bf16 working copy beside its fp32 masters in every arm.
    shipped=bf16_compute(parameter="bfloat16", master="float32", reduce="bfloat16"),
    matched=bf16_compute(parameter="bfloat16", master="float32", reduce="float32"),
    # DeepSpeed 0.19.8: stage 0 refuses the mix, stage 1 and an offloaded stage 2 keep bfloat16 whatever is asked for.
    float32_gradients=lambda settings: settings.stage == 3 or (settings.stage == 2 and not settings.offload_optimizer),
    optimizers={
        ("cuda", False): "deepspeed-fused",
        ("cuda", True): "deepspeed-cpu",
        ("cpu", True): "deepspeed-cpu",
    },
    trials=lambda settings: _TRIALS[settings.stage],
    hooks_in_blocks=lambda settings: settings.stage == 3,
    ledger=_ledger,
    traffic=_traffic,
)
