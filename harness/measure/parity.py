"""The parity gate: what the arm promises against what the real tensors, tokens and losses say."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.contract.measured import Found
from harness.contract.parity import loss_differences
from harness.contract.spec import RunSpec

OPTIMIZER_CLASSES = {
    "torch-fused": "torch.optim.adamw.AdamW (fused)",
    "torch-foreach": "torch.optim.adamw.AdamW (foreach)",
    "deepspeed-fused": "deepspeed.ops.adam.fused_adam.FusedAdam",
    "deepspeed-cpu": "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam",
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One promise that was not kept."""

    what: str
    promised: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: promised {self.promised}, found {self.found}"


def numerics_mismatches(spec: RunSpec, found: Found) -> list[Mismatch]:
    """Dtypes and optimizer class that differ from the spec's; a tensor the engine does not hold cannot differ."""
    promised = {
        "parameter": spec.numerics.parameter,
        "compute": spec.numerics.compute,
        "reduce": spec.numerics.reduce,
        "master": spec.numerics.master,
        "optimizer_state": spec.numerics.optimizer_state,
        "optimizer_class": OPTIMIZER_CLASSES[spec.optimizer.implementation],
    }
    pairs = ((what, wanted, getattr(found, what)) for what, wanted in promised.items())
    return [Mismatch(what, wanted, real) for what, wanted, real in pairs if real is not None and real != wanted]


def token_mismatches(spec: RunSpec, tokens_per_step: int) -> list[Mismatch]:
    """Tokens that all ranks really trained on in one step, against the spec's."""
    if tokens_per_step == spec.tokens_per_step:
        return []
    return [Mismatch("tokens_per_step", str(spec.tokens_per_step), str(tokens_per_step))]


def loss_mismatches(reference: Sequence[float] | None, losses: Sequence[float], spec: RunSpec) -> list[Mismatch]:
    """Steps whose mean loss over ranks lies further from the reference than the relative tolerance."""
    if reference is None:
        return []
    tolerance = spec.protocol.parity_tolerance
    return [
        Mismatch(f"loss of step {i}", f"{reference[i]:.6g} within {tolerance:.2%}", f"{losses[i]:.6g}")
        for i, difference in enumerate(loss_differences(losses, reference, spec.protocol.parity_steps))
        if difference > tolerance
    ]
