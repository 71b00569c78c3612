"""Numbers out of what no class describes: a profile, a preflight, figures of a cited source."""

import math
from typing import Any


def number(plain: Any, *path: str) -> float | None:
    """The finite number below those keys; None where there is none, or anything else."""
    for name in path:
        plain = plain.get(name) if isinstance(plain, dict) else None
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        return None
    try:
        return float(plain) if math.isfinite(plain) else None
    except OverflowError:
        return None
