"""The fit frontier of one config: the largest size that fits, the smallest that does not, and every probe.

A probe is one attempt with `protocol.ladder`: one process group that tries the ladder's sizes, smallest first. Its own
record holds its rungs too (`measured.frontier`).
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from harness.contract.codec import Float, Int, PositiveInt, decode, encode
from harness.contract.errors import SpecError
from harness.contract.platform import Platform
from harness.contract.spec import RunSpec
from harness.contract.units import GIB

RUNG_STEPS = 2
"""Steps at each size. The first allocates the optimizer's state, so only the second reaches the full peak."""
Over = Literal["micro_batch", "sequence_length"]
LIMIT = {"micro_batch": 64, "sequence_length": 32768}
RESOLUTION = {"micro_batch": 1, "sequence_length": 256}
CARDS: dict[str, tuple[float, str]] = {
    "h200": (139.8, "measured: records of results/h200-x2-2026"),
    "l4": (22.03, "torch's message in results/published"),
    "a100-40gb": (39.49, "torch's message in results/published"),
    "a100-80gb": (79.15, "torch's message in https://github.com/huggingface/accelerate/issues/1864"),
    "h100-80gb": (79.11, "torch's message in https://github.com/vllm-project/vllm/issues/27508"),
    "b200": (178.35, "torch's message in https://github.com/stas00/ml-engineering, debug/pytorch.md"),
}
"""Card -> total GiB that CUDA reports, and the source of the figure; drivers differ by up to 0.3 GiB."""
OUTSIDE_GIB = 1.8
"""CUDA context, NCCL and kernels outside torch: 1.1 to 2.1 GiB on the stored H200 runs."""
PACKED = 0.96
"""Share of the allocator's memory that training can fill before blocks no longer fit. In results/h200-x2-2026/frontier
runs reached 133.2 of 138.0 GiB. A larger run may still fit, for example with expandable segments."""
Predict = Callable[[RunSpec], int | None]
"""Predicted peak of one rank in bytes; None for a model that it does not know."""


class Bounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a search may try; sizes in sequences or tokens."""

    limit: PositiveInt
    """Largest size to try."""
    resolution: PositiveInt
    """Sizes are multiples of it."""
    rungs: PositiveInt = 8
    """Most sizes that one probe tries."""
    processes: PositiveInt = 6
    """Most probes."""

    def __post_init__(self) -> None:
        if self.limit < self.resolution:
            raise SpecError(f"limit: found {self.limit}, expected at least the resolution, {self.resolution}")


def search_bounds(
    over: Over, limit: int | None, resolution: int | None, rungs: int | None = None, processes: int | None = None
) -> Bounds:
    """Bounds with the axis's own figures where none is given. Raises SpecError."""
    given = {"limit": limit, "resolution": resolution, "rungs": rungs, "processes": processes}
    own = {"limit": LIMIT[over], "resolution": RESOLUTION[over]}
    return decode(Bounds, own | {name: value for name, value in given.items() if value is not None})


class FrontierSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One frontier to find, over `spec.protocol.ladder_over`."""

    spec: RunSpec
    bounds: Bounds
    folder: str = ""
    """Folder of its result, below the folder of all frontiers."""

    @property
    def options(self) -> list[str]:
        """Options with which `python -m harness frontier` finds it for one spec."""
        given = {"over": self.spec.protocol.ladder_over, **encode(self.bounds)}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]


class FrontierPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan file: frontiers to find, most wanted first."""

    frontiers: tuple[FrontierSpec, ...]


class Rung(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One size of a ladder, over all ranks."""

    size: Int
    fits: bool | None
    """null: the process died at this size for another reason."""
    peak_allocated_bytes: Int | None = None
    peak_reserved_bytes: Int | None = None
    alloc_retries: Int | None = None
    """How often the allocator released its cache before the size fitted."""
    host_rss_peak_bytes: Int | None = None
    step_time_s: Float | None = None
    """Of the last step, slowest rank."""
    outcome: str | None = None
    """How the process ended there; null where it fits."""
    rank: Int | None = None
    """Who died first there."""
    phase: str | None = None
    """Phase in which it ended; `load` and `init` come before the first step."""
    asked_bytes: Int | None = None
    """Size of the allocation that failed."""


class Probe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process group and the rungs that it reached."""

    folder: str
    """Its attempt folder, below the frontier's own."""
    ladder: tuple[Int, ...]
    outcome: str
    wall_s: Float | None
    rungs: tuple[Rung, ...]


class Frontier(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a config stops fitting."""

    platform: str
    config: str
    arm: str
    over: Over
    resolution: Int
    """Sizes are multiples of it; `smallest_fail` is `largest_fit` plus one of it when `ended` is `found`."""
    limit: Int
    """No size above it was tried."""
    largest_fit: Int | None
    """null: no size was seen to fit."""
    smallest_fail: Int | None
    """null: no size was seen not to fit."""
    predicted: Int | None
    """Largest size that the memory ledger expects to fit; null where the capacity is not known."""
    capacity_bytes: Int | None
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
    data = replace(spec.data, **axis)
    return replace(spec, data=data)


def probe_spec(spec: RunSpec, ladder: tuple[int, ...]) -> RunSpec:
    """The run that tries that ladder. It applies no remedies, because they would move the limit that it looks for."""
    protocol = replace(
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
    return replace(sized(spec, ladder[0]), protocol=protocol)


def usable_bytes(card_gib: float) -> int:
    """What torch may allocate on an uncapped card of that total memory."""
    return int((card_gib - OUTSIDE_GIB) * GIB)


def capacity_bytes(platform: Platform) -> int | None:
    """What one rank's allocator may hold; None for a card that is not in the table, and for a CPU."""
    if platform.memory_cap_gib is not None:
        return int(platform.memory_cap_gib * GIB)
    card = CARDS.get(platform.accelerator)
    return None if card is None else usable_bytes(card[0])


def predicted_limit(spec: RunSpec, bounds: Bounds, capacity: int, predict: Predict) -> int | None:
    """Largest size up to the limit whose predicted peak fits; 0: none does, None: cannot be predicted.

    A peak fits when it leaves the allocator its gaps: at most `PACKED` of the capacity.
    """
    if predict(spec) is None:
        return None
    fits, fails = 0, bounds.limit // bounds.resolution + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if (predict(sized(spec, middle * bounds.resolution)) or 0) <= capacity * PACKED:
            fits = middle
        else:
            fails = middle
    return fits * bounds.resolution


def parse_frontier(plain: Any) -> Frontier:
    """Decode a frontier from parsed JSON. Raises SpecError naming the dotted key."""
    return decode(Frontier, plain)
