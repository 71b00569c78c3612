"""The protocol that every engine follows, and the context that an engine is built from.

The loop (`engines/loop.py`) drives any engine through three calls a step and never asks which one it is: `forward` and
`backward` once per micro-step, then `step`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal, Protocol

import torch
from torch import nn

from harness.contract.errors import SpecError
from harness.contract.measured import Found
from harness.contract.spec import RunSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Context:
    """One rank's place in the run."""

    spec: RunSpec
    rank: int
    world_size: int
    device: torch.device
    """The accelerator of this rank, or the CPU."""
    loading: dict[str, float] = field(default_factory=dict)
    """Filled while pretrained weights are read: `harness/engines/checkpoint.py`."""


Role = Literal["parameter", "gradient", "optimizer"]


@dataclass(frozen=True, slots=True)
class Holding:
    """One tensor that this rank keeps as training state."""

    role: Role
    tensor: torch.Tensor
    """The rank's own part: a shard where the engine shards."""


class Engine(Protocol):
    """A model wrapped for training on this rank."""

    model: nn.Module
    """The Hugging Face model inside; its parameters may be shards."""
    parameters: int
    """Parameters of the whole model, tied ones counted once."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Loss of one micro-batch, a scalar on the device.

        tokens: int64 [micro_batch, sequence_length], inputs and labels alike.
        """
        ...

    def backward(self, loss: torch.Tensor, *, last: bool, hold: bool = False) -> None:
        """Accumulate the loss's gradients; `last` marks the last micro-step, the one that must be reduced.

        `hold` marks a backward that `holdings` and `found` will report on. The engine then notes what it hands to
        reductions and keeps the last gradients instead of freeing them. This costs time and memory, so it is never set
        inside the timed window.
        """
        ...

    def step(self) -> torch.Tensor | float | None:
        """Clip, update and clear gradients; returns the global gradient norm before clipping, unsynchronized."""
        ...

    def parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """This rank's own part of every parameter that trains, by the parameter's name in the model."""
        ...

    def holdings(self) -> Iterator[Holding]:
        """Every tensor of training state on this rank, to be called between the last backward and `step`."""
        ...

    def found(self) -> Found:
        """Numerics of the real tensors, to be called between the last backward and `step`."""
        ...

    def resolved(self) -> dict[str, object]:
        """The engine's complete configuration as JSON values."""
        ...


def import_engine(name: str) -> Callable[[Context], Engine]:
    """The builder of an engine of `harness/contract/engines`: `build` in the module here that has its name."""
    builder: Callable[[Context], Engine] = import_module(f"harness.engines.{name}").build
    return builder


def build_engine(context: Context) -> Engine:
    """Build the engine that the spec names. Raises SpecError for numerics or an optimizer that it does not have."""
    return import_engine(context.spec.engine.name)(context)


def dtype(name: str) -> torch.dtype:
    """The torch dtype of a spec's dtype name. Raises SpecError for float16, which needs loss scaling."""
    if name not in DTYPES:
        raise SpecError(f"numerics: found {name!r}, expected one of {', '.join(DTYPES)}; no engine here scales losses")
    return DTYPES[name]


def dtype_name(value: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(value).removeprefix("torch.")


def require(spec: RunSpec, **allowed: tuple[str, ...]) -> None:
    """Refuse numerics that an engine cannot give. Raises SpecError naming the role."""
    for role, names in allowed.items():
        found = getattr(spec.numerics, role)
        if found not in names:
            raise SpecError(
                f"numerics.{role}: found {found!r}, engine {spec.engine.name!r} gives {' or '.join(names)} here"
            )
