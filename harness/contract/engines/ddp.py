"""torch.nn.parallel.DistributedDataParallel: the reference; nothing is sharded."""

from msgspec import Struct

from harness.contract.codec import PositiveFloat
from harness.contract.engines.descriptor import Config, Descriptor, Trials, bf16_compute
from harness.contract.engines.memory import Ledger, Sizes
from harness.contract.engines.traffic import Message
from harness.contract.units import MIB


class DdpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of DDP, with torch's own defaults."""

    bucket_cap_mb: PositiveFloat = 25.0
    gradient_as_bucket_view: bool = True
    compile: bool = False
    """torch.compile each decoder block and the loss."""


_TRIALS: Trials = (
    {},
    {"bucket_cap_mb": 100.0},
    {"bucket_cap_mb": 400.0},
    {"compile": True},
    {"compile": True, "bucket_cap_mb": 100.0},
    {"compile": True, "bucket_cap_mb": 400.0},
)


def _ledger(settings: DdpSettings, sizes: Sizes) -> Ledger:
    """Parameter, gradient and two moments in the parameter's dtype: 16 bytes a parameter, in bfloat16 8."""
    n, each = sizes.parameters, sizes.bytes
    casts = each["compute"] != each["parameter"]
    compresses = each["reduce"] != each["parameter"]
    # Cast copies live from forward to backward. With checkpointing, blocks make theirs again in backward, so only the
    # head's copies live that long.
    cast = sizes.embedding_parameters if sizes.checkpointing else n
    copies = 0 if settings.gradient_as_bucket_view else n * each["parameter"]
    return Ledger(
        parameters=n * each["parameter"],
        gradients=n * each["parameter"],
        optimizer=n * 2 * each["optimizer_state"],
        # Gradients are views of the buckets, so they stay allocated between steps.
        standing_gradients=n * each["parameter"] if settings.gradient_as_bucket_view else 0,
        gathered=cast * each["compute"] if casts else 0,
        buckets=copies + (int(settings.bucket_cap_mb * MIB) if compresses else 0),
    )


def _traffic(settings: DdpSettings, sizes: Sizes) -> tuple[Message, ...]:
    """One all-reduce a bucket."""
    buckets = -(-sizes.parameters * sizes.bytes["parameter"] // int(settings.bucket_cap_mb * MIB))
    return (Message(kind="all_reduce", bytes=sizes.parameters * sizes.bytes["reduce"], calls=buckets),)


DDP = Descriptor(
    name="ddp",
    launcher="torchrun",
    settings=DdpSettings,
    configs=(Config(name="ddp", engine="ddp", shards="nothing", baseline=True),),
    shipped=bf16_compute(parameter="bfloat16", master="bfloat16", reduce="bfloat16"),
    matched=bf16_compute(parameter="float32", master="float32", reduce="float32"),
    trials=lambda _: _TRIALS,
    ledger=_ledger,
    traffic=_traffic,
)
