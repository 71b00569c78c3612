"""The one loop that trains under every engine."""

from collections.abc import Callable

import torch

from harness.contract.heartbeat import HeartbeatWriter
from harness.engines.base import Context, Engine
from harness.engines.data import Tokens

Hook = Callable[[int, str, torch.Tensor | None], torch.Tensor | None]
"""Called at the start of each phase with (step, phase, loss); may return another loss."""


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

    def losses(self) -> list[float]:
        """This rank's mean loss of every step so far; synchronizes."""
        return [float(x) for x in torch.stack(self._losses).float().tolist()] if self._losses else []

    def norms(self) -> list[float | None]:
        """Global gradient norm before clipping of every step so far; synchronizes."""
        return [None if n is None else float(n) for n in self._norms]
