"""Every engine's settings and every named config, as data: what a study may name and override.

Torch-free on purpose: the client refuses a bad override before anything starts. What the settings
do is in `harness/engines/`.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from harness.contract.codec import decode, encode, nearest
from harness.contract.errors import SpecError

NumericDtype = Literal["float32", "bfloat16", "float16"]
Sharded = Literal["nothing", "optimizer", "gradients", "parameters"]
"""What is split over the ranks, each with everything named before it: ZeRO's stages 0 to 3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """The dtypes of one training, by role. The worker reads the real ones back and compares."""

    parameter: NumericDtype
    """What the model's parameters are held in between steps (the sharded copy for FSDP2)."""
    compute: NumericDtype
    """What forward and backward run in."""
    master: NumericDtype
    """What the optimizer updates: equals `parameter` when there is no separate master copy."""
    optimizer_state: NumericDtype
    """Adam's two moments."""
    reduce: NumericDtype
    """What gradients are reduced across ranks in."""
    accumulate: NumericDtype
    """What gradients are accumulated in over micro-steps."""


NUMERIC_DTYPES = tuple(f.name for f in dataclasses.fields(Numerics))


@dataclass(frozen=True, kw_only=True, slots=True)
class DdpSettings:
    """torch.nn.parallel.DistributedDataParallel: the reference; nothing is sharded."""

    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = True
    compile: bool = False
    """torch.compile each decoder block and the loss."""

    def __post_init__(self) -> None:
        if self.bucket_cap_mb <= 0:
            raise SpecError(f"bucket_cap_mb: found {self.bucket_cap_mb}, expected more than 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class FsdpSettings:
    """torch.distributed.fsdp.fully_shard, one call per decoder block plus the root."""

    reshard_after_forward: bool = True
    """Free the gathered parameters after forward and gather them again for backward."""
    offload: bool = False
    """CPUOffloadPolicy: parameters, gradients and optimizer state live in host memory."""
    pin_memory: bool = True
    prefetch_depth: int = 0
    """Explicit forward and backward prefetch of this many blocks; 0 keeps the implicit one-ahead."""
    blocks_per_group: int = 1
    """Decoder blocks that share one fully_shard call, one all-gather and one reduce-scatter."""
    compile: bool = False
    """torch.compile each decoder block and the loss."""

    def __post_init__(self) -> None:
        if self.prefetch_depth < 0:
            raise SpecError(f"prefetch_depth: found {self.prefetch_depth}, expected 0 or more")
        if self.blocks_per_group < 1:
            raise SpecError(f"blocks_per_group: found {self.blocks_per_group}, expected 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroSettings:
    """DeepSpeed ZeRO. The defaults are DeepSpeed 0.19's own, written out; no "auto" anywhere."""

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
    reduce_bucket_size: int = 500_000_000
    """Elements per reduction bucket."""
    allgather_bucket_size: int = 500_000_000
    """Elements per all-gather bucket (stages 1 and 2)."""
    prefetch_bucket_size: int = 50_000_000
    """Elements prefetched ahead of use (stage 3)."""
    param_persistence_threshold: int = 100_000
    """Parameters with fewer elements stay replicated (stage 3)."""
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000
    leaf_blocks: bool = False
    """Treat each decoder block as one leaf: one gather per block, as FSDP2 does (stage 3)."""
    deepcompile: bool = False
    compile: bool = False
    """torch.compile each decoder block and the loss."""

    def __post_init__(self) -> None:
        if self.offload_param and self.stage != 3:
            raise SpecError(f"offload_param: needs stage 3, found stage {self.stage}")
        if self.offload_optimizer and self.stage == 0:
            raise SpecError("offload_optimizer: needs stage 1, 2 or 3, found stage 0")
        for name in ("reduce_bucket_size", "allgather_bucket_size", "sub_group_size"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}: found {getattr(self, name)}, expected 1 or more elements")
        for name in ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name}: found {getattr(self, name)}, expected 0 or more elements")


Settings = DdpSettings | FsdpSettings | ZeroSettings
SETTINGS: dict[str, type[DdpSettings] | type[FsdpSettings] | type[ZeroSettings]] = {
    "ddp": DdpSettings,
    "fsdp2": FsdpSettings,
    "zero": ZeroSettings,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A named config: an engine with one setting of it."""

    name: str
    engine: str
    launcher: str
    shards: Sharded
    offloads: bool = False
    """Whether state lives in host memory, where the optimizer steps."""
    keeps_gathered: bool = False
    """Whether gathered parameters stay whole between forward and backward."""
    baseline: bool = False
    """Plain data parallelism, the ordinary training loop: the other engines' own cost is measured against it."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What differs from the engine's defaults."""


_SHARDED: tuple[Sharded, ...] = ("nothing", "optimizer", "gradients", "parameters")


def _ddp(name: str) -> Config:
    return Config(name=name, engine="ddp", launcher="torchrun", shards="nothing", baseline=True)


def _zero(name: str, stage: int, *, offloads: bool = False, **settings: Any) -> Config:
    settings = {"stage": stage} | settings
    return Config(
        name=name, engine="zero", launcher="deepspeed", shards=_SHARDED[stage], offloads=offloads, settings=settings
    )


def _fsdp2(name: str, **settings: Any) -> Config:
    return Config(
        name=name,
        engine="fsdp2",
        launcher="torchrun",
        shards="parameters",
        offloads=settings.get("offload", False),
        keeps_gathered=not settings.get("reshard_after_forward", True),
        settings=settings,
    )


CONFIGS: dict[str, Config] = {
    c.name: c
    for c in (
        _ddp("ddp"),
        _zero("zero-0", 0),
        _zero("zero-1", 1, overlap_comm=False),
        _zero("zero-2", 2, overlap_comm=False),
        _zero("zero-3", 3),
        _zero("zero-3-offload", 3, offloads=True, offload_optimizer=True, offload_param=True),
        _fsdp2("fsdp2-reshard"),
        _fsdp2("fsdp2-noreshard", reshard_after_forward=False),
        _fsdp2("fsdp2-reshard-offload", offload=True),
    )
}
"""Every config a study may name, in the order tables list them when a study gives none."""

Fact = Literal["engine", "shards", "offloads", "keeps_gathered"]


def pairs_apart_by(fact: Fact) -> tuple[tuple[Config, Config], ...]:
    """Every two configs that differ in this fact alone, the later of `CONFIGS` first.

    By "engine": the same sharding by two engines; by "shards": two stages of one engine; by "offloads" and by
    "keeps_gathered": the config that does it, and the same one without.
    """
    others = [name for name in get_args(Fact) if name != fact]
    return tuple(
        (later, earlier)
        for index, later in enumerate(CONFIGS.values())
        for earlier in list(CONFIGS.values())[:index]
        if getattr(later, fact) != getattr(earlier, fact)
        and all(getattr(later, name) == getattr(earlier, name) for name in others)
    )


def _numerics(parameter: str, master: str, reduce: str, accumulate: str | None = None) -> Numerics:
    return decode(
        Numerics,
        {
            "parameter": parameter,
            "compute": "bfloat16",
            "master": master,
            "optimizer_state": master,
            "reduce": reduce,
            "accumulate": accumulate or reduce,
        },
    )


SHIPPED_NUMERICS: dict[str, Numerics] = {
    "ddp": _numerics("bfloat16", "bfloat16", "bfloat16"),
    "fsdp2": _numerics("bfloat16", "bfloat16", "bfloat16"),
    "zero": _numerics("bfloat16", "float32", "bfloat16"),
}
"""The `defaults` arm: each engine on a bf16 model, as published: only ZeRO keeps fp32 masters."""

MATCHED_NUMERICS: dict[str, Numerics] = {
    "ddp": _numerics("float32", "float32", "float32"),
    "fsdp2": _numerics("float32", "float32", "float32"),
    "zero": _numerics("bfloat16", "float32", "float32", accumulate="bfloat16"),
}
"""The `matched` arm: fp32 masters and moments, bf16 compute, fp32 reduction everywhere.

`parameter` differs in form only: ZeRO keeps a bf16 working copy beside its fp32 masters, FSDP2 and
DDP keep the fp32 masters as the parameters and cast them for compute.
"""


def resolve_settings(engine: str, overrides: dict[str, Any], key: str = "settings") -> dict[str, Any]:
    """Complete an engine's settings. Raises SpecError naming an override that the engine does not have."""
    if engine not in SETTINGS:
        raise SpecError(f"engine: found {engine!r}; {nearest(engine, tuple(SETTINGS))}")
    for name in overrides:
        others = [
            other for other, settings in SETTINGS.items() if name in {f.name for f in dataclasses.fields(settings)}
        ]
        if others and engine not in others:
            raise SpecError(f"{key}.{name}: a setting of {' and '.join(others)}, and {engine} has none of that name")
    resolved: dict[str, Any] = encode(decode(SETTINGS[engine], overrides, key))
    return resolved


def check_settings(engine: str, settings: dict[str, Any]) -> None:
    """Refuse settings that are unknown, ill-typed or incomplete. Raises SpecError."""
    resolved = resolve_settings(engine, settings)
    missing = [name for name in resolved if name not in settings]
    if missing:
        raise SpecError(f"settings.{missing[0]}: missing; a spec states every setting of its engine")


def parse_settings(engine: str, settings: dict[str, Any]) -> Settings:
    """The typed settings of an engine. Raises SpecError."""
    return decode(SETTINGS[engine], settings, "settings")
