"""The one loop that trains under every engine, and the token ids that it trains on."""

from collections.abc import Callable

import torch

from harness.contract.heartbeat import HeartbeatWriter
from harness.engines.base import Context, Engine

ALPHABET, VOCABULARY_SHARE = 512, 16
"""`structured` data uses at most this many distinct tokens, and of a small vocabulary one token in this many."""
JUMP_ONE_IN = 8
"""`structured` data: the next token is random, not the successor, once in this many tokens."""
Hook = Callable[[int, str, torch.Tensor | None], torch.Tensor | None]
"""Called at the start of each phase with (step, phase, loss); may return another loss."""


class Tokens:
    """Token ids as a pure function of (seed, step, micro-step, rank), drawn on the CPU: the same for every device."""

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

    def read_as(self, rank: int) -> None:
        """Draw the prepared batches, and all later ones, as another rank does; for tests of the gate."""
        self._rank = rank
        self._ready = {(step, micro_step): self.draw(step, micro_step) for step, micro_step in self._ready}

    def batch(self, step: int, micro_step: int) -> torch.Tensor:
        """int64 [micro_batch, sequence_length] on the device; the step must have been prepared."""
        return self._ready.pop((step, micro_step)).to(self._device, non_blocking=True)

    def draw(self, step: int, micro_step: int) -> torch.Tensor:
        """int64 [micro_batch, sequence_length] on the CPU.

        Integers come from a seeded generator, so that every device and engine trains on the same tokens.
        """
        index = (step * self._micro_steps + micro_step) * self._world_size + self._rank
        # A study may give any seed of 64 bits; torch takes no larger number.
        self._generator.manual_seed((self._seed * 1_000_003 + index) % 2**63)
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
        letters = min(ALPHABET, max(2, self._vocabulary // VOCABULARY_SHARE))
        starts = torch.randint(letters, self._shape, generator=self._generator)
        jumps = torch.randint(JUMP_ONE_IN, self._shape, generator=self._generator) == 0
        places = torch.arange(self._shape[1])
        last_jumps = torch.where(jumps, places, 0).cummax(1).values
        letter = (starts.gather(1, last_jumps) + places - last_jumps) % letters
        return letter * (self._vocabulary // letters)


class Loop:
    """Runs optimizer steps, one after the other, and keeps every step's loss and gradient norm on the device."""

    def __init__(
        self,
        context: Context,
        engine: Engine,
        heartbeat: HeartbeatWriter,
        memory: Callable[[], tuple[int, int]],
        hook: Hook | None,
    ) -> None:
        self._engine, self._heartbeat, self._memory, self._hook = engine, heartbeat, memory, hook
        self._micro_steps = context.spec.data.gradient_accumulation
        self.tokens = Tokens(context)
        self._at_phase: Callable[[str], None] | None = None
        self.next_step = 0
        self.tokens_seen = 0
        self.watch_batches = True
        """Whether checksums of batches are taken; not inside the timed window."""
        self._sums: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._norms: list[torch.Tensor | float | None] = []

    def step(
        self, before_update: Callable[[], None] | None = None, at_phase: Callable[[str], None] | None = None
    ) -> None:
        """One optimizer step; `before_update` runs between the last backward and the update, `at_phase` at each phase.

        With `before_update`, the engine holds its gradients as they are at the end of backward.
        """
        engine, step = self._engine, self.next_step
        self._at_phase = at_phase
        total: torch.Tensor | None = None
        for micro_step in range(self._micro_steps):
            self._phase("forward")
            tokens = self.tokens.batch(step, micro_step)
            self.tokens_seen += tokens.numel()
            if self.watch_batches:
                self._sums.append((tokens.flatten() * torch.arange(1, tokens.numel() + 1, device=tokens.device)).sum())
            loss = engine.forward(tokens)
            replaced = self._phase("backward", loss)
            loss = loss if replaced is None else replaced
            total = loss.detach() if total is None else total + loss.detach()
            engine.backward(loss, last=micro_step + 1 == self._micro_steps, hold=before_update is not None)
        self._phase("step")
        if before_update is not None:
            before_update()
        self._norms.append(engine.step())
        assert total is not None, "a step has at least one micro-step"
        self._losses.append(total / self._micro_steps)
        self.next_step += 1

    def _phase(self, phase: str, loss: torch.Tensor | None = None) -> torch.Tensor | None:
        self._heartbeat.beat(self.next_step, phase, *self._memory())
        if self._at_phase is not None:
            self._at_phase(phase)
        if self._hook is not None:
            return self._hook(self.next_step, phase, loss)
        return loss

    def checksums(self) -> torch.Tensor:
        """int64 [batches]: one checksum for each batch that was watched."""
        return torch.stack(self._sums) if self._sums else torch.empty(0, dtype=torch.int64)

    def losses(self) -> list[float]:
        """This rank's mean loss of every step so far; synchronizes."""
        return [float(x) for x in torch.stack(self._losses).float().tolist()] if self._losses else []

    def norms(self) -> list[float | None]:
        """Global gradient norm before clipping of every step so far; synchronizes."""
        return [None if n is None else float(n) for n in self._norms]
