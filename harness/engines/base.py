"""The protocol that every engine implements, and what it is given to build itself from.

The loop (`engines/loop.py`) drives any engine through three calls a step and never asks which one
it is: `forward` and `backward` once per micro-step, then `step`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import nn

from harness.contract.measured import Found
from harness.contract.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Context:
    """One rank's place in the run."""

    spec: RunSpec
    rank: int
    world_size: int
    device: torch.device
    """The accelerator of this rank, or the CPU."""


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

        `hold` marks a backward that `holdings` and `found` will report on: the engine notes what it hands to
        reductions, and keeps gradients as they are when the last one has been computed, before it tidies up.
        It costs time and memory, and is never set inside the timed window.
        """
        ...

    def step(self) -> torch.Tensor | float | None:
        """Clip, update and clear gradients; returns the global gradient norm before clipping, unsynchronized."""
        ...

    def holdings(self) -> Iterator[Holding]:
        """Every tensor of training state on this rank, to be called between the last backward and `step`."""
        ...

    def found(self) -> Found:
        """Numerics as the real tensors say, to be called between the last backward and `step`."""
        ...

    def resolved(self) -> dict[str, object]:
        """The engine's complete configuration as JSON values."""
        ...
