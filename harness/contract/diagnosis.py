"""What a diagnosis says: the interface between the rules that find it and everybody who shows it."""

from dataclasses import dataclass

from harness.contract.outcome import Confidence, outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One line of evidence for the outcome."""

    file: str
    line: int
    """1-based; 0 for a fact that is not a line of a text (an exit code, a pod condition)."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """How an attempt or a try ended, who died first, and what shows it."""

    outcome: str
    confidence: Confidence
    culprit_rank: int | None = None
    evidence: tuple[Evidence, ...] = ()
    runner_up: str | None = None
    """The outcome that is second most likely by the evidence, if any."""
    sentence: str = ""
    """One line for the reader, with the numbers that matter."""

    def __post_init__(self) -> None:
        outcome(self.outcome)
        if self.runner_up is not None:
            outcome(self.runner_up)
