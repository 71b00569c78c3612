"""One `Descriptor` per engine: what this project knows of the engine before importing it. Needs no torch.

With it the client refuses a bad override before anything starts. Study, spec, ledger and report read the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from harness.contract.engines.memory import Ledger, Sizes
from harness.contract.engines.traffic import Message

NumericDtype = Literal["float32", "bfloat16", "float16"]
Sharded = Literal["nothing", "optimizer", "gradients", "parameters"]
"""What is sharded over the ranks. Each entry includes those before it, as in ZeRO's stages 0 to 3."""
Replicated = Literal["", "parameters", "state"]
Launcher = Literal["torchrun", "deepspeed"]
"""Who starts the ranks: the names in `harness/supervisor/launch.py`."""
Trials = tuple[dict[str, Any], ...]
"""Settings to try, each laid over a config's own."""


class Numerics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dtypes of one training, by role. The worker reads the real ones back and compares."""

    parameter: NumericDtype
    """Dtype of the model's parameters between steps (of the sharded copy for FSDP2)."""
    compute: NumericDtype
    """Dtype in which forward and backward compute."""
    master: NumericDtype
    """Dtype of the copy that the optimizer updates; equals `parameter` when there is no separate master copy."""
    optimizer_state: NumericDtype
    """Dtype of Adam's two moments."""
    reduce: NumericDtype
    """Dtype in which gradients are reduced across ranks."""
    accumulate: NumericDtype
    """Dtype in which gradients are accumulated over micro-steps."""


NUMERIC_DTYPES = Numerics.__struct_fields__


def bf16_compute(*, parameter: NumericDtype, master: NumericDtype, reduce: NumericDtype) -> Numerics:
    """Numerics that compute in bfloat16, keep Adam's moments like the masters and add gradients up like parameters."""
    return Numerics(
        parameter=parameter,
        compute="bfloat16",
        master=master,
        optimizer_state=master,
        reduce=reduce,
        accumulate=parameter,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A named config: an engine with one setting of it, and what a report asks of it."""

    name: str
    engine: str
    shards: Sharded
    offloads: bool = False
    """Whether state lives in host memory, where the optimizer steps."""
    keeps_gathered: bool = False
    """Whether gathered parameters stay whole between forward and backward."""
    replicates: Replicated = ""
    """What every node holds a whole copy of, sharded over its ranks."""
    usual: bool = True
    """Whether a study that names no configs runs it."""
    baseline: bool = False
    """Whether it is plain data parallelism, against which the cost of the other engines is measured."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What differs from the engine's defaults."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """One engine, as data. `harness/engines/<name>.py` obeys its settings."""

    name: str
    launcher: Launcher
    settings: type[Struct]
    """Every setting, with its default. The functions below are given one of these."""
    added: frozenset[str] = frozenset()
    """Settings that came after specs were stored: a spec leaves them out at their default, so that hashes hold."""
    configs: tuple[Config, ...]
    shipped: Numerics
    """The `defaults` arm: on a bf16 model, as the engine does it by itself."""
    matched: Numerics
    """The `matched` and `tuned` arms: fp32 masters and moments, bf16 compute and fp32 reduction in every engine."""
    float32_gradients: Callable[[Any], bool] = lambda _: False
    """Settings -> whether the engine can keep gradients in float32 where `matched` numerics do not."""
    hooks_in_blocks: Callable[[Any], bool] = lambda _: False
    """Settings -> whether the engine hooks into modules of a decoder block, which splits the block's compiled graph."""
    optimizers: dict[tuple[str, bool], str] = field(default_factory=dict)
    """The `defaults` arm: (device, whether the config offloads) -> the engine's own AdamW, if it brings one."""
    trials: Callable[[Any], Trials]
    """Default search of the `tuned` arm: six trials, none of which changes numerics."""
    ledger: Callable[[Any, Sizes], Ledger] | None = None
    """Memory of one rank, activations and logits left out; None: no prediction is made for this engine."""
    traffic: Callable[[Any, Sizes], tuple[Message, ...]] | None = None
    """What one micro-step sends, without small messages; None: nothing is projected to other numbers of nodes."""

    def optimizer(self, device: str, offloads: bool) -> str:
        """The AdamW that this engine ships with; torch's fused one where it brings none."""
        return self.optimizers.get((device, offloads), "torch-fused")
