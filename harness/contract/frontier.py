"""The fit frontier of one config: the largest size that fits, the smallest that does not, and every probe between.

A probe is one attempt with `protocol.ladder`: one process group that tries the ladder's sizes, smallest first. Its own
record holds its rungs too (`measured.frontier`).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from harness.contract.bounds import check
from harness.contract.codec import decode, encode, read_json
from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec

RUNG_STEPS = 2
"""Steps at each size: the first allocates the optimizer's state, the second peaks with all of it there."""
Over = Literal["micro_batch", "sequence_length"]
LIMIT = {"micro_batch": 64, "sequence_length": 32768}
RESOLUTION = {"micro_batch": 1, "sequence_length": 256}
Predict = Callable[[RunSpec], int | None]
"""Predicted peak of one rank in bytes; None for a model that it does not know."""
OUT_OF_MEMORY = frozenset({"cuda_oom", "cuda_oom_fragmentation", "wedge_masking_oom", "host_oom"})
"""Outcomes that say a size does not fit; any other death says nothing about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What a search may try; sizes in sequences or tokens."""

    limit: int
    """Largest size to try."""
    resolution: int
    """Sizes are multiples of it."""
    rungs: int = 8
    """Most sizes that one probe tries."""
    processes: int = 6
    """Most probes."""

    ONE_OR_MORE: ClassVar = ("limit", "resolution", "rungs", "processes")

    def __post_init__(self) -> None:
        check(self)
        if self.limit < self.resolution:
            raise SpecError(f"limit: found {self.limit}, expected at least the resolution, {self.resolution}")


def search_bounds(
    over: Over, limit: int | None, resolution: int | None, rungs: int | None = None, processes: int | None = None
) -> Bounds:
    """Bounds with the axis's own figures where none is given. Raises SpecError."""
    given = {"limit": limit, "resolution": resolution, "rungs": rungs, "processes": processes}
    own = {"limit": LIMIT[over], "resolution": RESOLUTION[over]}
    return Bounds(**(own | {name: value for name, value in given.items() if value is not None}))


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierSpec:
    """One frontier to find, over `spec.protocol.ladder_over`."""

    spec: RunSpec
    bounds: Bounds
    folder: str = ""
    """Where its result goes, below the folder of all of them."""

    @property
    def options(self) -> list[str]:
        """Options with which `python -m harness frontier` finds it for one spec."""
        given = {"over": self.spec.protocol.ladder_over, **encode(self.bounds)}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPlan:
    """A plan file: frontiers to find, most wanted first."""

    frontiers: tuple[FrontierSpec, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One size of a ladder, over all ranks."""

    size: int
    fits: bool | None
    """null: the process died of something else there."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    alloc_retries: int | None = None
    """Times the allocator had to hand its cache back before it fitted."""
    host_rss_peak_bytes: int | None = None
    step_time_s: float | None = None
    """Of the last step, slowest rank."""
    outcome: str | None = None
    """How the process ended there; null where it fits."""
    rank: int | None = None
    """Who died first there."""
    phase: str | None = None
    """Where in the step (or before it: `load`, `init`) that was."""
    asked_bytes: int | None = None
    """What could not be allocated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One process group and the rungs that it reached."""

    folder: str
    """Its attempt folder, below the frontier's own."""
    ladder: tuple[int, ...]
    outcome: str
    wall_s: float | None
    rungs: tuple[Rung, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """Where a config stops to fit."""

    platform: str
    config: str
    arm: str
    over: Over
    resolution: int
    """Sizes are multiples of it; `smallest_fail` is `largest_fit` plus one of it when `ended` is `found`."""
    limit: int
    """No size above it was tried."""
    largest_fit: int | None
    """null: no size was seen to fit."""
    smallest_fail: int | None
    """null: no size was seen not to fit."""
    predicted: int | None
    """Largest size that the memory ledger expects to fit; null where the capacity is not known."""
    capacity_bytes: int | None
    """What the prediction had to fit into."""
    ended: str
    """`found`; `limit`: the limit itself fits; `nothing`: the smallest size does not fit; `processes`: they ran out;
    otherwise the outcome that stopped the search."""
    probes: tuple[Probe, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        encoded: dict[str, Any] = encode(self)
        return encoded


def sized(spec: RunSpec, size: int) -> RunSpec:
    """The spec with its ladder's axis at that size."""
    axis: dict[str, Any] = {spec.protocol.ladder_over: size}
    data = dataclasses.replace(spec.data, **axis)
    return dataclasses.replace(spec, data=data)


def probe_spec(spec: RunSpec, ladder: tuple[int, ...]) -> RunSpec:
    """The run that tries that ladder, without remedies: they would move the limit that it looks for."""
    protocol = dataclasses.replace(
        spec.protocol,
        ladder=ladder,
        trials=(),
        remedies="off",
        warmup_steps=0,
        timed_steps=RUNG_STEPS * len(ladder),
        profiled_steps=0,
        preflight=False,
        reference_loss=None,
    )
    return dataclasses.replace(sized(spec, ladder[0]), protocol=protocol)


def predicted_limit(spec: RunSpec, bounds: Bounds, capacity: int, predict: Predict) -> int | None:
    """Largest size up to the limit whose predicted peak fits the capacity; 0: none does, None: cannot be predicted."""
    if predict(spec) is None:
        return None
    fits, fails = 0, bounds.limit // bounds.resolution + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if (predict(sized(spec, middle * bounds.resolution)) or 0) <= capacity:
            fits = middle
        else:
            fails = middle
    return fits * bounds.resolution


def read_frontier(path: Path) -> Frontier:
    """Read a frontier file. Raises SpecError naming it."""
    plain = read_json(path)
    try:
        return decode(Frontier, plain)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
