"""What one entry of the signature tables says: which text speaks for which outcome, and how loudly."""

import re
from dataclasses import dataclass, field
from enum import IntEnum

from harness.contract.outcome import Confidence, outcome

STOPS = frozenset({"preemption", "user_cancelled", "deadline"})
"""Outcomes of being stopped from outside: an error before the stop is the better answer."""


class Tier(IntEnum):
    """How far to trust a line, most telling first (design section 7)."""

    BENIGN = 0
    """Looks like a death and is none."""
    VERDICT = 1
    """The cluster, the kernel or the scheduler says what it did."""
    COMPLETE = 2
    """The run says that it finished."""
    CAUSE = 3
    """A real error of a rank."""
    HINT = 4
    """An error that often has another cause behind it: counts only when nothing better speaks."""
    WATCHDOG = 5
    """A rank waited for the others too long."""
    MESSENGER = 6
    """A rank saw that a peer was gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """One recognisable line."""

    name: str
    """Unique; shown in the documentation."""
    outcome: str
    tier: Tier
    pattern: str
    """Regular expression searched in the normalised line."""
    confidence: Confidence = "high"
    needles: tuple[str, ...] = ()
    """Texts of which every matching line holds one, in lower case without digits: lines without any are never tried."""
    advice: str = ""
    """What to do next when this line decides; empty: the outcome's own advice."""
    regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        outcome(self.outcome)
        object.__setattr__(self, "regex", re.compile(self.pattern))


def cause(
    outcome: str,
    name: str,
    pattern: str,
    confidence: Confidence = "high",
    *,
    needles: tuple[str, ...] = (),
    advice: str = "",
) -> Signature:
    """A signature of tier CAUSE."""
    return entry(Tier.CAUSE, outcome, name, pattern, confidence, needles=needles, advice=advice)


def entry(
    tier: Tier,
    outcome: str,
    name: str,
    pattern: str,
    confidence: Confidence = "high",
    *,
    needles: tuple[str, ...] = (),
    advice: str = "",
) -> Signature:
    """A signature of any tier; without needles it is never searched for in a log, only assigned by a reader."""
    return Signature(
        name=name,
        outcome=outcome,
        tier=tier,
        pattern=pattern,
        confidence=confidence,
        needles=needles,
        advice=advice,
    )
