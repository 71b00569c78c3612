"""Do two runs train the same thing? Losses step by step against the study's reference."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.contract.codec import digest
from harness.contract.parity import loss_differences
from harness.contract.record import Record
from harness.contract.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Parity:
    """Largest relative loss difference over the compared steps."""

    difference: float
    """|loss - reference| / |reference|, the largest; infinite for a loss that is not finite."""
    step: int
    """0-based step in which it fell."""
    steps: int
    """Steps compared."""
    tolerance: float
    loss: float
    """In that step."""
    reference: float
    """The reference's loss in that step."""

    @property
    def within(self) -> bool:
        """Whether every compared step is inside the tolerance."""
        return self.difference <= self.tolerance

    @property
    def sentence(self) -> str:
        """How far apart, in words; steps are counted from 0 as in the run's own gate."""
        apart = f"{self.difference:.2%} apart" if math.isfinite(self.difference) else "not to be compared"
        return (
            f"The loss of step {self.step} is {self.loss:.6g}, the reference's is {self.reference:.6g}: "
            f"{apart}, at most {self.tolerance:.2%} allowed in the first {self.steps} steps."
        )


def same_training(spec: RunSpec) -> str:
    """Key of everything that decides the losses apart from engine and numerics: equal keys are comparable."""
    optimizer = spec.optimizer
    return digest(
        {
            "model": [spec.model.config, spec.model.weights, spec.model.pretrained, spec.model.seed],
            "data": spec.data,
            "world_size": spec.platform.world_size,
            "optimizer": [
                optimizer.learning_rate,
                optimizer.betas,
                optimizer.epsilon,
                optimizer.weight_decay,
                optimizer.clip_norm,
            ],
        }
    )


def references(records: Iterable[Record]) -> dict[str, list[float]]:
    """Losses of the reference runs by `same_training`; the first finished one of each, in the order given."""
    found: dict[str, list[float]] = {}
    for record in records:
        if record.spec.identity.reference and record.outcome == "ok" and record.measured and record.measured.loss:
            found.setdefault(same_training(record.spec), list(record.measured.loss))
    return found


def compare(loss: Sequence[float], reference: Sequence[float], *, steps: int, tolerance: float) -> Parity | None:
    """Compare the first `steps` losses; None when there is nothing to compare."""
    differences = loss_differences(loss, reference, steps)
    if not differences:
        return None
    worst = max(range(len(differences)), key=differences.__getitem__)
    return Parity(differences[worst], worst, len(differences), tolerance, loss[worst], reference[worst])
