"""Decides which ladder the next probe of a fit frontier tries, and when the answer is known. Starts no process.

Building a model takes far longer than two steps of it, so one probe tries a whole ladder of sizes
until one does not fit. The first ladder surrounds the predicted limit; each further one divides
the sizes that are still open, until none is left.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.contract.frontier import (
    Bounds,
    Frontier,
    Predict,
    Probe,
    Rung,
    capacity_bytes,
    predicted_limit,
    probe_spec,
)
from harness.contract.spec import RunSpec

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Sizes of the first ladder, as shares of the predicted limit."""
GROWTH = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Sizes of the next ladder when a whole ladder fitted, as multiples of its largest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What probes have shown so far to fit and not to fit, in multiples of the resolution."""

    fits: int = 0
    """Largest size that fits; 0: none is known."""
    fails: int | None = None

    def seen(self, rungs: Iterable[Rung], resolution: int) -> "Known":
        """What is known after a probe."""
        fits, fails = self.fits, self.fails
        for rung in rungs:
            steps = rung.size // resolution
            if rung.fits:
                fits = max(fits, steps)
            elif rung.fits is False:
                fails = steps if fails is None else min(fails, steps)
        return Known(fits=fits, fails=fails)


def search(spec: RunSpec, bounds: Bounds, predict: Predict, run: Callable[[RunSpec], Probe]) -> Frontier:
    """Probe until no size is open between the largest that fits and the smallest that does not; `run` runs a probe."""
    capacity = capacity_bytes(spec.platform)
    predicted = None if capacity is None else predicted_limit(spec, bounds, capacity, predict)
    probes: list[Probe] = []
    known, ended = Known(), ""
    while not ended:
        ladder = next_ladder(known, bounds, predicted, first=not probes)
        probes.append(run(probe_spec(spec, ladder)))
        known = known.seen(probes[-1].rungs, bounds.resolution)
        ended = _ended(known, bounds, probes)
    return Frontier(
        platform=spec.platform.name,
        config=spec.identity.config,
        arm=spec.identity.arm,
        over=spec.protocol.ladder_over,
        resolution=bounds.resolution,
        limit=bounds.limit,
        largest_fit=known.fits * bounds.resolution or None,
        smallest_fail=known.fails and known.fails * bounds.resolution,
        predicted=predicted,
        capacity_bytes=capacity,
        ended=ended,
        probes=tuple(probes),
    )


def next_ladder(known: Known, bounds: Bounds, predicted: int | None, *, first: bool) -> tuple[int, ...]:
    """The next ladder in rising order, without sizes whose answer is known."""
    top = bounds.limit // bounds.resolution
    if known.fails is not None:
        # Take evenly spaced sizes from the open ones, or all of them when they are few.
        width = known.fails - known.fits
        count = min(bounds.rungs, width - 1)
        steps = {known.fits + round(width * (i + 1) / (count + 1)) for i in range(count)}
    elif first and predicted:
        steps = {round(share * predicted / bounds.resolution) for share in SHARES}
    elif known.fits:
        steps = {max(known.fits + 1, round(growth * known.fits)) for growth in GROWTH}
    else:
        steps = {2**i for i in range(bounds.rungs)}
    upper = top if known.fails is None else known.fails - 1
    inside = {min(max(step, known.fits + 1), upper) for step in steps}
    return tuple(step * bounds.resolution for step in sorted(inside)[: bounds.rungs])


def _ended(known: Known, bounds: Bounds, probes: list[Probe]) -> str:
    last = probes[-1]
    stopped_by = next((r.outcome for r in last.rungs if r.fits is None), None)
    if known.fails is not None and known.fails - known.fits <= 1:
        return "found" if known.fits else "nothing"
    if known.fits >= bounds.limit // bounds.resolution:
        return "limit"
    if stopped_by is not None:
        return stopped_by
    if known.fits == 0 and any(r.fits is False and r.phase in ("load", "init") for r in last.rungs):
        # The process died while the model was built, before any batch, so no smaller size can help.
        return "nothing"
    return "processes" if len(probes) >= bounds.processes else ""
