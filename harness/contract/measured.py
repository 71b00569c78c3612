"""The numbers of a run: what one rank's worker measured, and what the supervisor makes of all ranks."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from harness.contract.bounds import check
from harness.contract.codec import decode, read_json
from harness.contract.errors import SpecError
from harness.contract.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Peaks over the timed window of one rank, or the maximum over ranks. Bytes; null: not measured."""

    peak_allocated_bytes: int | None = None
    peak_active_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    alloc_retries: int | None = None
    """cudaMalloc retries inside the timed window; more than 0 contaminates its times."""
    device_used_bytes: int | None = None
    """As the driver sees it: allocator, NCCL, CUDA context, everybody."""
    non_torch_bytes: int | None = None
    """Device used minus reserved."""
    host_rss_peak_bytes: int | None = None
    host_pinned_bytes: int | None = None
    peak_phase: str | None = None
    """Phase of the step in which the allocated peak fell: forward, backward, step."""

    NOT_NEGATIVE: ClassVar = (
        "peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "alloc_retries", "device_used_bytes",
        "host_rss_peak_bytes", "host_pinned_bytes",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Training state of one rank, as found after a backward from step 2 on. Bytes."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    """Masters (when apart from the parameters) and moments."""
    host_bytes: int
    """The part of the three that lies in host memory."""
    bytes_per_parameter: float
    """All three, over the model's parameter count."""
    expected_bytes_per_parameter: float | None
    """What the numerics and the sharding say it must be (formula at the engine)."""

    NOT_NEGATIVE: ClassVar = (
        "parameter_bytes",
        "gradient_bytes",
        "optimizer_bytes",
        "host_bytes",
        "bytes_per_parameter",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Numerics as read back at run time; null where the engine holds no such tensor."""

    parameter: str | None
    compute: str | None
    gradient: str | None
    reduce: str | None
    master: str | None
    optimizer_state: str | None
    optimizer_class: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """What one rank's worker measured."""

    rank: int
    world_size: int
    parameters: int
    """Parameters of the whole model, tied ones counted once."""
    window_s: float
    """Timed window: barrier and synchronize, the timed steps, barrier and synchronize."""
    energy_j: float | None = None
    """What this rank's GPU used over the timed window, by NVML's counter; null: not measured."""
    step_times_s: list[float]
    """Each timed step: device events on CUDA, the host's clock on CPU."""
    warmup_step_times_s: list[float]
    loss: list[float]
    """This rank's loss of every step, warm-up first."""
    grad_norm: list[float | None]
    """Global gradient norm before clipping, of every step, warm-up first."""
    memory: Memory
    state: State | None
    found: Found
    startup_s: dict[str, float]
    """Seconds spent before the first timed step, by part: import, build, wrap, warmup."""
    resolved: dict[str, Any]
    """The engine's own resolved configuration: nothing left to a default that moves."""
    versions: dict[str, str]
    device_name: str
    profile: dict[str, Any] | None = None
    """The profiled pass of this rank: `harness/measure/traffic.py` says what is in it."""
    preflight: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None
    """Predicted memory by part, bytes: `harness/measure/ledger.py`."""
    search: list[dict[str, Any]] | None = None
    """Trials of the tuned arm."""
    frontier: list[dict[str, Any]] | None = None
    """Rungs of the ladder that were tried: size, fits, peak bytes, step seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The run's numbers over all ranks: times and memory as the maximum, losses as the mean.

    A cited source may give only some of them; what was not measured is null or empty.
    """

    parameters: int | None = None
    step_time_s: float | None = None
    """Window over timed steps, maximum over ranks: the primary number."""
    step_time_p50_s: float | None = None
    step_time_p95_s: float | None = None
    step_times_s: list[float] = field(default_factory=list)
    warmup_step_times_s: list[float] = field(default_factory=list)
    tokens_per_step: int | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    energy_j: float | None = None
    """What all GPUs used over the timed window, by NVML's counters; null: not measured."""
    sm_mhz: float | None = None
    """Median clock of the multiprocessors over GPUs and samples of the timed window."""
    throttle: tuple[str, ...] = ()
    """Why a GPU ran below full clocks in the timed window, for example `power_cap` or `hw_thermal`."""
    loss: list[float] = field(default_factory=list)
    grad_norm: list[float | None] = field(default_factory=list)
    memory: Memory | None = None
    memory_by_rank: list[Memory] = field(default_factory=list)
    state: State | None = None
    """Of the rank with most bytes."""
    found: Found | None = None
    startup_s: dict[str, float] = field(default_factory=dict)
    mfu: float | None = None
    """Model FLOP utilization, attention counted in full; null for an unknown accelerator."""
    mfu_causal: float | None = None
    flags: tuple[str, ...] = ()
    """What makes the numbers doubtful: alloc_retries, throttled, unstable, faults, profile_failed."""
    profile: dict[str, Any] | None = None
    preflight: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None
    search: list[dict[str, Any]] | None = None
    """Trials of the tuned arm, each as `contract/trial.py` says; one of them `kept`."""
    frontier: list[dict[str, Any]] | None = None
    """Rungs of the ladder that were tried: size, fits, peak bytes, step seconds."""

    POSITIVE: ClassVar = (
        "parameters", "step_time_s", "step_time_p50_s", "step_time_p95_s", "tokens_per_step", "tokens_per_s",
        "tokens_per_s_per_gpu",
    )  # fmt: skip
    NOT_NEGATIVE: ClassVar = ("mfu", "mfu_causal", "energy_j", "sm_mhz")

    def __post_init__(self) -> None:
        check(self)
        for index, trial in enumerate(self.search or ()):
            decode(Trial, trial, f"search[{index}]")


def read_rank_result(path: Path) -> RankResult:
    """Read one rank's result file. Raises SpecError naming the file."""
    plain = read_json(path)
    try:
        return decode(RankResult, plain)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
