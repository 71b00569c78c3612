"""One trial of the tuned arm, as a record's `measured.search` lists it."""

from dataclasses import dataclass
from typing import Any, ClassVar

from harness.contract.bounds import check
from harness.contract.outcome import outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What was tried and how it ended."""

    settings: dict[str, Any]
    """Engine settings over the config's own; empty: the config as given."""
    outcome: str
    tokens_per_s: float | None
    """null: it did not end ok."""
    kept: bool
    """Whether the run was then measured with these settings."""
    sentence: str = ""
    step_time_s: float | None = None
    peak_allocated_bytes: int | None = None
    wall_s: float | None = None

    POSITIVE: ClassVar = ("tokens_per_s", "step_time_s")
    NOT_NEGATIVE: ClassVar = ("peak_allocated_bytes", "wall_s")

    def __post_init__(self) -> None:
        check(self)
        outcome(self.outcome)
