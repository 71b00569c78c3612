"""Do two runs train the same thing? Losses step by step against the study's reference."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.contract.measured import Measured
from harness.contract.parity import Mismatch, Trace, loss_differences, reference_mismatches, same_training, trace_of
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
    mismatches: tuple[Mismatch, ...] | None = None
    """What the gate says of structured data; None: judged by the tolerance."""

    @property
    def within(self) -> bool:
        """Whether it is the reference's training."""
        return self.difference <= self.tolerance if self.mismatches is None else not self.mismatches

    @property
    def sentence(self) -> str:
        """How far apart, in words; steps are counted from 0 as in the run's own gate."""
        if self.mismatches:
            return f"{self.mismatches[0]}."
        apart = f"{self.difference:.2%} apart" if math.isfinite(self.difference) else "not to be compared"
        return (
            f"The loss of step {self.step} is {self.loss:.6g}, the reference's is {self.reference:.6g}: "
            f"{apart}, at most {self.tolerance:.2%} allowed in the first {self.steps} steps."
        )


def references(records: Iterable[Record]) -> dict[str, Trace]:
    """Trainings of the reference runs by `same_training`; the first finished one of each, in the order given."""
    found: dict[str, Trace] = {}
    for record in records:
        measured = record.measured if record.spec.identity.reference and record.outcome == "ok" else None
        if measured and measured.loss and all(map(math.isfinite, measured.loss)):
            found.setdefault(same_training(record.spec), trace_of(measured))
    return found


def judge(spec: RunSpec, measured: Measured, reference: Trace) -> Parity | None:
    """Hold a finished run against the reference's training; None when there is nothing to compare."""
    protocol = spec.protocol
    parity = compare(measured.loss, reference.loss, steps=protocol.parity_steps, tolerance=protocol.parity_tolerance)
    if parity is None or spec.data.tokens == "skewed":
        return parity
    return dataclasses.replace(parity, mismatches=tuple(reference_mismatches(spec, trace_of(measured), reference)))


def compare(loss: Sequence[float], reference: Sequence[float], *, steps: int, tolerance: float) -> Parity | None:
    """Compare the first `steps` losses; None when there is nothing to compare."""
    differences = loss_differences(loss, reference, steps)
    if not differences:
        return None
    worst = max(range(len(differences)), key=differences.__getitem__)
    return Parity(differences[worst], worst, len(differences), tolerance, loss[worst], reference[worst])
