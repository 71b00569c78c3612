"""Numbers on the command line: each says what was found and what is expected."""

import argparse
import math


def count(text: str) -> int:
    """A whole number of 1 or more, with at most 64 bits. Raises ArgumentTypeError."""
    if text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) < 2**63:
        return int(text)
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of 1 or more, of at most 64 bits")


def amount(text: str) -> float:
    """A finite number above 0, for example 10e9. Raises ArgumentTypeError."""
    if 0 < (value := _number(text)) < math.inf:
        return value
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0, for example 10e9 or 2.5")


def share(text: str) -> float:
    """A share below 1, as 5% or 0.05. Raises ArgumentTypeError."""
    value = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if 0 <= value < 1:
        return value
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a share below 1, for example 5% or 0.05")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
