"""Bounds of numbers and names, said once: what decodes a class refuses by them, and the JSON Schemas state them.

A dataclass names its bounded fields in class variables called as the constants here, and calls `check`.
"""

import re
from dataclasses import dataclass
from typing import Any

from harness.contract.codec import show
from harness.contract.errors import SpecError


@dataclass(frozen=True, slots=True)
class Bound:
    """One kind of bound."""

    least: int
    exclusive: bool
    words: str
    """What an error says was expected."""


BOUNDS = {
    "POSITIVE": Bound(0, True, "more than 0"),
    "NOT_NEGATIVE": Bound(0, False, "0 or more"),
    "ONE_OR_MORE": Bound(1, False, "1 or more"),
}
"""Name of the class variable -> the bound of the fields it lists; null is within every bound."""
NOT_EMPTY = "NOT_EMPTY"
"""Name of the class variable that lists the lists which need an entry."""
NAMES = "NAMES"
"""Name of the class variable that lists the fields which are folders, labels and parts of Jobs' names."""
NAME = r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?"
LONGEST_NAME = 63
"""Of a Kubernetes label's value; a file system takes four times as many."""


def bounds_of(cls: type[Any]) -> dict[str, Bound]:
    """Field -> its bound."""
    return {name: bound for kind, bound in BOUNDS.items() for name in getattr(cls, kind, ())}


def check(value: Any) -> None:
    """Hold a dataclass's numbers against its bounds. Raises SpecError naming field, value and bound."""
    for name, bound in bounds_of(type(value)).items():
        found = getattr(value, name)
        if found is not None and (found < bound.least or (bound.exclusive and found == bound.least)):
            raise SpecError(f"{name}: found {found}, expected {bound.words}")
    for name in getattr(type(value), NOT_EMPTY, ()):
        if not getattr(value, name):
            raise SpecError(f"{name}: found an empty list, expected at least one")
    for name in getattr(type(value), NAMES, ()):
        check_name(getattr(value, name), name)


def check_name(found: str, key: str) -> None:
    """Refuse a name of a study, platform or config that cannot be a folder and a label. Raises SpecError."""
    if len(found) > LONGEST_NAME or not re.fullmatch(NAME, found):
        raise SpecError(
            f"{key}: found {show(found)}, expected lower-case letters, digits and inner . _ -, at most {LONGEST_NAME}"
        )
