"""The search for a fit frontier, without a process in it: which sizes to climb next, and when the answer is known.

Building a model takes far longer than two steps of it, so a process climbs a whole ladder of sizes
until one does not fit. The first ladder surrounds the predicted limit; each further one divides
the bracket that is left, until it is one step wide.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.contract.frontier import Bounds, Frontier, Predict, Probe, Rung, predicted_limit, probe_spec
from harness.contract.spec import RunSpec
from harness.contract.units import GIB

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""The first ladder, as shares of the prediction."""
GROWTH = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""The next ladder above one that fitted whole, as multiples of its top."""

DEVICE_GIB = {"l4": 22.0, "a100-40gb": 39.5, "a100-80gb": 79.1, "h100-80gb": 79.1, "h200": 139.7, "b200": 178.3}
"""Memory of one card as its driver reports it, a little less than the name says."""
OUTSIDE_GIB = 1.0
"""CUDA context and NCCL buffers beside the allocator of an uncapped card, a usual figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bracket:
    """What is known so far, in steps of the resolution."""

    fits: int = 0
    """0: nothing is known to fit."""
    fails: int | None = None

    def seen(self, rungs: Iterable[Rung], resolution: int) -> "Bracket":
        """The bracket after a climb."""
        fits, fails = self.fits, self.fails
        for rung in rungs:
            steps = rung.size // resolution
            if rung.fits:
                fits = max(fits, steps)
            elif rung.fits is False:
                fails = steps if fails is None else min(fails, steps)
        return Bracket(fits=fits, fails=fails)


def search(spec: RunSpec, bounds: Bounds, predict: Predict, run: Callable[[RunSpec], Probe]) -> Frontier:
    """Climb and divide until the bracket is one step wide; `run` runs one probe."""
    capacity = capacity_bytes(spec)
    predicted = None if capacity is None else predicted_limit(spec, bounds, capacity, predict)
    probes: list[Probe] = []
    bracket, ended = Bracket(), ""
    while not ended:
        ladder = next_ladder(bracket, bounds, predicted, first=not probes)
        probes.append(run(probe_spec(spec, ladder)))
        bracket = bracket.seen(probes[-1].rungs, bounds.resolution)
        ended = _ended(bracket, bounds, probes)
    return Frontier(
        platform=spec.platform.name,
        config=spec.identity.config,
        arm=spec.identity.arm,
        over=spec.protocol.ladder_over,
        resolution=bounds.resolution,
        limit=bounds.limit,
        largest_fit=bracket.fits * bounds.resolution or None,
        smallest_fail=bracket.fails and bracket.fails * bounds.resolution,
        predicted=predicted,
        capacity_bytes=capacity,
        ended=ended,
        probes=tuple(probes),
    )


def next_ladder(bracket: Bracket, bounds: Bounds, predicted: int | None, *, first: bool) -> tuple[int, ...]:
    """The sizes to climb next, rising; never one whose answer is known."""
    top = bounds.limit // bounds.resolution
    if bracket.fails is not None:
        # Evenly spaced inside the bracket; all of them when they are few.
        width = bracket.fails - bracket.fits
        count = min(bounds.rungs, width - 1)
        steps = {bracket.fits + round(width * (i + 1) / (count + 1)) for i in range(count)}
    elif first and predicted:
        steps = {round(share * predicted / bounds.resolution) for share in SHARES}
    elif bracket.fits:
        steps = {max(bracket.fits + 1, round(growth * bracket.fits)) for growth in GROWTH}
    else:
        steps = {2**i for i in range(bounds.rungs)}
    upper = top if bracket.fails is None else bracket.fails - 1
    inside = {min(max(step, bracket.fits + 1), upper) for step in steps}
    return tuple(step * bounds.resolution for step in sorted(inside)[: bounds.rungs])


def capacity_bytes(spec: RunSpec) -> int | None:
    """What one rank's allocator may hold; None for a card that is not in the table."""
    if spec.platform.memory_cap_gib is not None:
        return int(spec.platform.memory_cap_gib * GIB)
    card = DEVICE_GIB.get(spec.platform.accelerator)
    return None if card is None else int((card - OUTSIDE_GIB) * GIB)


def _ended(bracket: Bracket, bounds: Bounds, probes: list[Probe]) -> str:
    last = probes[-1]
    stopped_by = next((r.outcome for r in last.rungs if r.fits is None), None)
    if bracket.fails is not None and bracket.fails - bracket.fits <= 1:
        return "found" if bracket.fits else "nothing"
    if bracket.fits >= bounds.limit // bounds.resolution:
        return "limit"
    if stopped_by is not None:
        return stopped_by
    if bracket.fits == 0 and any(r.fits is False and r.phase in ("load", "init") for r in last.rungs):
        # It died while it was being built: the size of a batch has no part in that.
        return "nothing"
    return "processes" if len(probes) >= bounds.processes else ""
