"""torch.distributed.fsdp.fully_shard, one call per group of decoder blocks plus the root."""

from msgspec import Struct

from harness.contract.codec import NotNegativeInt, PositiveInt
from harness.contract.engines.descriptor import Config, Descriptor, Trials, bf16_compute
from harness.contract.engines.memory import Ledger, Sizes
from harness.contract.engines.traffic import Among, Message


class FsdpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of FSDP2, with torch's own defaults."""

    reshard_after_forward: bool | PositiveInt = True
    """Free the gathered parameters after forward and gather them again for backward; a number keeps them sharded over
    so many neighbouring ranks in between, so that gathering them again stays inside that group."""
    offload: bool = False
    """CPUOffloadPolicy: parameters, gradients and optimizer state live in host memory."""
    pin_memory: bool = True
    prefetch_depth: NotNegativeInt = 0
    """Explicit forward and backward prefetch of this many blocks; 0 keeps the implicit one-ahead."""
    blocks_per_group: PositiveInt = 1
    """Decoder blocks that share one fully_shard call, one all-gather and one reduce-scatter."""
    replicate_nodes: bool = False
    """HSDP: shard inside a node and replicate across nodes. Gathers stay inside a node; what crosses the network is one
    all-reduce of each rank's gradient shard."""
    compile: bool = False
    """torch.compile each decoder block and the loss."""


_TRIALS: Trials = (
    {},
    {"prefetch_depth": 2},
    {"blocks_per_group": 2},
    {"compile": True},
    {"compile": True, "prefetch_depth": 2},
    {"compile": True, "blocks_per_group": 2},
)


def _ledger(settings: FsdpSettings, sizes: Sizes) -> Ledger:
    """Parameter, gradient and two moments in the parameter's dtype, over the ranks: 16/W bytes, in bfloat16 8/W.

    HSDP divides them by the ranks of a node, because every node holds a whole copy.
    """
    n, each = sizes.parameters, sizes.bytes
    world = sizes.ranks_per_node if settings.replicate_nodes else sizes.world_size
    unit = sizes.block_parameters * settings.blocks_per_group
    root = n - sizes.layers * sizes.block_parameters
    # When backward begins, resharding keeps the root, which holds the head, and the blocks prefetched by then.
    kept = root + max(1, settings.prefetch_depth) * unit if settings.reshard_after_forward else n
    group = settings.reshard_after_forward
    # Neighbours hold the whole model between them after forward; True and False are no numbers of ranks.
    between = 0 if isinstance(group, bool) else n // group
    parameters, optimizer = n * each["parameter"] // world, n * 2 * each["optimizer_state"] // world
    return Ledger(
        parameters=0 if settings.offload else parameters,
        gradients=0 if settings.offload else parameters,
        optimizer=0 if settings.offload else optimizer,
        gathered=min(kept + between, n) * each["compute"],
        # In backward a unit's whole gradient lies beside its reduce-scatter input.
        unreduced=max(unit, root) * (each["compute"] + each["reduce"]),
        host=2 * parameters + optimizer if settings.offload else 0,
    )


def _traffic(settings: FsdpSettings, sizes: Sizes) -> tuple[Message, ...]:
    """Gather all parameters for forward, gather again what forward freed (all but the root), reduce the gradients."""
    n, each = sizes.parameters, sizes.bytes
    blocks, units = sizes.layers * sizes.block_parameters, -(-sizes.layers // settings.blocks_per_group)
    among: Among = "node" if settings.replicate_nodes else "all"
    sent = [
        Message(kind="all_gather", bytes=n * each["compute"], calls=units + 1, among=among),
        Message(kind="reduce_scatter", bytes=n * each["reduce"], calls=units + 1, among=among),
    ]
    if group := settings.reshard_after_forward:
        near = not isinstance(group, bool) and sizes.ranks_per_node % group == 0
        again: Among = "node" if near else among
        sent.append(Message(kind="all_gather", bytes=blocks * each["compute"], calls=units, among=again))
    if settings.replicate_nodes:
        part = n * each["reduce"] // sizes.ranks_per_node
        sent.append(Message(kind="all_reduce", bytes=part, calls=units + 1, among="peers"))
    return tuple(sent)


def _config(name: str, **settings: bool) -> Config:
    full = FsdpSettings(**settings)
    return Config(
        name=name,
        engine="fsdp2",
        shards="parameters",
        offloads=full.offload,
        keeps_gathered=not full.reshard_after_forward,
        replicates="state" if full.replicate_nodes else "",
        # Only several nodes make it differ from sharding over all ranks.
        usual=not full.replicate_nodes,
        settings=dict(settings),
    )


FSDP2 = Descriptor(
    name="fsdp2",
    launcher="torchrun",
    settings=FsdpSettings,
    added=frozenset({"replicate_nodes"}),
    configs=(
        _config("fsdp2-reshard"),
        _config("fsdp2-noreshard", reshard_after_forward=False),
        _config("fsdp2-reshard-offload", offload=True),
        _config("fsdp2-hsdp", replicate_nodes=True),
    ),
    shipped=bf16_compute(parameter="bfloat16", master="bfloat16", reduce="bfloat16"),
    matched=bf16_compute(parameter="float32", master="float32", reduce="float32"),
    trials=lambda _: _TRIALS,
    ledger=_ledger,
    traffic=_traffic,
)
