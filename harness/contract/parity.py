"""The one rule by which losses are held against a reference: at run time by the gate, later by the report."""

import math
from collections.abc import Sequence


def loss_differences(losses: Sequence[float], reference: Sequence[float], steps: int) -> list[float]:
    """|loss - reference| / |reference| of the first `steps` steps that both have; infinite when one is not finite.

    A step is inside a tolerance when its difference is at most that.
    """
    pairs = list(zip(losses, reference, strict=False))[:steps]
    return [
        abs(loss - expected) / max(abs(expected), 1e-12)
        if math.isfinite(loss) and math.isfinite(expected)
        else math.inf
        for loss, expected in pairs
    ]
