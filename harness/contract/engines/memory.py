"""Memory of one rank by part: the input of a descriptor's ledger, and its result."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Model and run, as far as an engine's own memory depends on them."""

    parameters: int
    """Parameters of the whole model, tied ones counted once."""
    layers: int
    block_parameters: int
    """Parameters of one decoder block."""
    embedding_parameters: int
    world_size: int
    ranks_per_node: int
    bytes: dict[str, int]
    """Role of the numerics -> bytes of one element."""
    checkpointing: bool = False
    """Whether backward computes each block again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """Predicted bytes of one rank, on the device unless said otherwise.

    Three moments compete for the peak. When backward begins, memory holds all that forward kept, and the logits or soon
    after them a recomputed block. It holds gradients only if the engine keeps a buffer for them. When backward ends,
    memory holds the state with all gradients, and the larger of one block's activations and one unit's whole gradients.
    The optimizer step adds its temporary copies.
    """

    parameters: int
    gradients: int
    optimizer: int
    """Masters, where they are apart from the parameters, and moments."""
    standing_gradients: int = 0
    """The part of the gradients that is allocated even when there are none."""
    gathered: int = 0
    """Whole parameters beyond the rank's part, when backward begins."""
    unreduced: int = 0
    """Whole gradients of the unit whose backward runs, before they are reduced."""
    activations: int = 0
    """What forward keeps for backward, all decoder blocks."""
    block: int = 0
    """Activations of the one block whose backward runs."""
    recomputed: int = 0
    """The same for a block that backward recomputes: these come on top of `activations`."""
    logits: int = 0
    """The head's output and the copies that the loss makes of it."""
    buckets: int = 0
    """Communication buffers that the engine allocates for itself."""
    update: int = 0
    """Temporary copies while the optimizer steps."""
    workspace: int = 0
    """Memory that the device's matrix libraries keep for themselves."""
    host: int = 0
    """State in host memory, which is not part of the device's peak."""

    @property
    def state(self) -> int:
        """Parameters, gradients and optimizer state on the device."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def loss_peak(self) -> int:
        """Device bytes when backward begins."""
        kept = self.gathered + self.activations + max(self.logits, self.recomputed) + self.buckets + self.workspace
        return self.parameters + self.optimizer + self.standing_gradients + kept

    @property
    def backward_peak(self) -> int:
        """Device bytes when backward ends."""
        return self.state + self.gathered + max(self.unreduced, self.block) + self.buckets + self.workspace

    @property
    def step_peak(self) -> int:
        """Device bytes while the optimizer steps."""
        return self.state + self.buckets + self.update + self.workspace

    @property
    def device_peak(self) -> int:
        """Device bytes at the fullest of the three moments."""
        return max(self.loss_peak, self.backward_peak, self.step_peak)

    def to_json(self) -> dict[str, Any]:
        """The parts, the peak and the phase it falls in."""
        peaks = {"backward": max(self.loss_peak, self.backward_peak), "step": self.step_peak}
        return {
            "parts_bytes": asdict(self),
            "device_peak_bytes": self.device_peak,
            "peak_phase": max(peaks, key=lambda phase: peaks[phase]),
        }
