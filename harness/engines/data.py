"""The data: token ids that are a pure function of (seed, step, micro-step, rank)."""

import torch

from harness.engines.base import Context

ALPHABET = 64
"""Tokens that `structured` data consists of at most."""
JUMP_ONE_IN = 8
"""`structured` data: how often, on average, the next token is any of the alphabet and not the successor."""


class Tokens:
    """Seeded token ids, drawn on the CPU so that every device trains on the same ones."""

    def __init__(self, context: Context) -> None:
        data = context.spec.data
        self._shape = (data.micro_batch, data.sequence_length)
        self._micro_steps, self._world_size, self._rank = data.gradient_accumulation, context.world_size, context.rank
        self._seed, self._vocabulary = data.seed, int(context.spec.model.config["vocab_size"])
        self._draw = {"skewed": self._skewed, "structured": self._structured}[data.tokens]
        self._device = context.device
        self._generator = torch.Generator()
        self._ready: dict[tuple[int, int], torch.Tensor] = {}

    def prepare(self, first_step: int, steps: int) -> None:
        """Draw the batches of these steps ahead of time, so that the loop only copies them."""
        for step in range(first_step, first_step + steps):
            for micro_step in range(self._micro_steps):
                tokens = self.draw(step, micro_step)
                self._ready[step, micro_step] = tokens.pin_memory() if self._device.type == "cuda" else tokens

    def batch(self, step: int, micro_step: int) -> torch.Tensor:
        """int64 [micro_batch, sequence_length] on the device; the step must have been prepared."""
        return self._ready.pop((step, micro_step)).to(self._device, non_blocking=True)

    def draw(self, step: int, micro_step: int) -> torch.Tensor:
        """int64 [micro_batch, sequence_length] on the CPU.

        Integers come from a seeded generator, so that every device and engine trains on the same tokens.
        """
        index = (step * self._micro_steps + micro_step) * self._world_size + self._rank
        self._generator.manual_seed(self._seed * 1_000_003 + index)
        return self._draw()

    def _skewed(self) -> torch.Tensor:
        """Ids that follow the square of a uniform variable, skewed as text is: the loss falls, slowly."""
        uniform = torch.rand(self._shape, generator=self._generator)
        return uniform.square_().mul_(self._vocabulary).long().clamp_(max=self._vocabulary - 1)

    def _structured(self) -> torch.Tensor:
        """A few tokens in a fixed cyclic order, with a jump now and then.

        A model learns which tokens there are within tens of steps, and then which one follows: the loss falls fast at
        any size.
        """
        letters = min(ALPHABET, self._vocabulary)
        starts = torch.randint(letters, self._shape, generator=self._generator)
        jumps = torch.randint(JUMP_ONE_IN, self._shape, generator=self._generator) == 0
        places = torch.arange(self._shape[1])
        last_jumps = torch.where(jumps, places, 0).cummax(1).values
        letter = (starts.gather(1, last_jumps) + places - last_jumps) % letters
        return letter * (self._vocabulary // letters)
