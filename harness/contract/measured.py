"""The numbers of a run: what one rank's worker measured, and what the supervisor makes of all ranks."""

import json
from typing import Any

from msgspec import Struct

from harness.contract.codec import (
    Float,
    Int,
    NotNegativeFloat,
    NotNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from harness.contract.frontier import Rung
from harness.contract.outcome import outcome


class Memory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peaks over the timed window of one rank, or the maximum over ranks. Bytes; null: not measured."""

    peak_allocated_bytes: NotNegativeInt | None = None
    """Most that PyTorch's allocator had handed out, in bytes."""
    peak_active_bytes: NotNegativeInt | None = None
    peak_reserved_bytes: NotNegativeInt | None = None
    """Most that PyTorch's allocator had taken from the device, in bytes."""
    alloc_retries: NotNegativeInt | None = None
    """cudaMalloc retries inside the timed window; more than 0 contaminates its times."""
    device_used_bytes: NotNegativeInt | None = None
    """As the driver sees it: allocator, NCCL, CUDA context, everybody."""
    non_torch_bytes: Int | None = None
    """Device used minus reserved."""
    host_rss_peak_bytes: NotNegativeInt | None = None
    """Most host memory that a rank's process had resident, in bytes."""
    host_pinned_bytes: NotNegativeInt | None = None
    peak_phase: str | None = None
    """Phase of the step in which allocated memory peaked: forward, backward, step."""


class State(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training state of one rank, as found after a backward from step 2 on. Bytes."""

    parameter_bytes: NotNegativeInt
    gradient_bytes: NotNegativeInt
    optimizer_bytes: NotNegativeInt
    """Masters (when apart from the parameters) and moments."""
    host_bytes: NotNegativeInt
    """The part of the three that lies in host memory."""
    bytes_per_parameter: NotNegativeFloat
    """Sum of the three, divided by the model's parameter count."""
    expected_bytes_per_parameter: Float | None
    """The same as numerics and sharding predict it; the engine's descriptor has the formula."""


class Found(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numerics as read back at run time; null where the engine holds no such tensor."""

    parameter: str | None
    compute: str | None
    gradient: str | None
    reduce: str | None
    master: str | None
    optimizer_state: str | None
    optimizer_class: str


class RankResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rank's worker measured."""

    rank: Int
    world_size: Int
    parameters: Int
    """Parameters of the whole model, tied ones counted once."""
    window_s: Float
    """Timed window: barrier and synchronize, the timed steps, barrier and synchronize."""
    energy_j: Float | None = None
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
    startup_s: dict[str, Float]
    """All seconds from the process's start to its first timed step, by part: import, preflight, build, warmup, gate."""
    resolved: dict[str, Any]
    """The engine's own resolved configuration: nothing left to a default that moves."""
    versions: dict[str, str]
    device_name: str
    moved: dict[str, float] = {}
    """Module -> mean distance that its parameters moved in the warm-up steps; empty: not looked at."""
    outputs: dict[str, float] = {}
    """Module -> mean magnitude of its output in the first step, over all ranks, in the order of the forward pass."""
    compiled_share: Float | None = None
    """Decoder blocks that ran compiled over all blocks, in the last warm-up step; null: nothing is compiled."""
    busiest_experts: dict[str, float] = {}
    """Block of experts -> tokens of its busiest expert over the mean of all, over all ranks in one step after the timed
    window; 1 is even balance. Empty: no experts, or compiled."""
    loading: dict[str, float] = {}
    """Reading pretrained weights: download_s, read_bytes, read_s, read_bytes_per_s, and host_peak_bytes, which is this
    process's peak of host memory until its engine was built. Empty: random weights."""
    profile: dict[str, Any] | None = None
    """The profiled pass of this rank: `harness/measure/traffic.py` says what is in it."""
    preflight: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None
    """Predicted memory by part, bytes: `harness/measure/ledger.py`."""


class Trial(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One trial of the tuned arm: what was tried and how it ended."""

    settings: dict[str, Any]
    """Engine settings laid over the config's own; empty: the config as given."""
    outcome: str
    tokens_per_s: PositiveFloat | None
    """null: it did not end ok."""
    kept: bool
    """Whether the run was then measured with these settings."""
    sentence: str = ""
    step_time_s: PositiveFloat | None = None
    peak_allocated_bytes: NotNegativeInt | None = None
    wall_s: NotNegativeFloat | None = None
    compiled_share: NotNegativeFloat | None = None
    """As in `Measured`; a trial below 1 is never kept, because its compilation gave up."""

    def __post_init__(self) -> None:
        outcome(self.outcome)


class Measured(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run's numbers over all ranks: times and memory as the maximum, losses as the mean.

    A cited source may give only some of them; what was not measured is null or empty.
    """

    parameters: PositiveInt | None = None
    """Parameters of the whole model, tied ones counted once."""
    step_time_s: PositiveFloat | None = None
    """Window over timed steps, maximum over ranks: the primary number."""
    step_time_p50_s: PositiveFloat | None = None
    """Median of the timed steps, in seconds."""
    step_time_p95_s: PositiveFloat | None = None
    """95th percentile of the timed steps, in seconds."""
    step_times_s: list[float] = []
    warmup_step_times_s: list[float] = []
    gpu_busy_s: NotNegativeFloat | None = None
    """Per step of the profiled pass, with any kernel or copy running, without waiting for other ranks; maximum."""
    dispatch_s: NotNegativeFloat | None = None
    """Host time per step of the profiled pass, waits for the device left out: an upper bound; maximum over ranks."""
    tokens_per_step: PositiveInt | None = None
    """Tokens of one optimizer step, all ranks together."""
    tokens_per_s: PositiveFloat | None = None
    """Tokens of all ranks per second of the timed window."""
    tokens_per_s_per_gpu: PositiveFloat | None = None
    """The same, divided by the number of ranks."""
    energy_j: NotNegativeFloat | None = None
    """What all GPUs used over the timed window, by NVML's counters; null: not measured."""
    sm_mhz: NotNegativeFloat | None = None
    """Median clock of the multiprocessors over GPUs and samples of the timed window."""
    throttle: tuple[str, ...] = ()
    """Why a GPU ran below full clocks in the timed window, for example `power_cap` or `hw_thermal`."""
    loss: list[float] = []
    grad_norm: list[float | None] = []
    moved: dict[str, float] = {}
    """Module -> mean distance that its parameters moved in the warm-up steps; empty: not looked at."""
    outputs: dict[str, float] = {}
    """Module -> mean magnitude of its output in the first step, in the order of the forward pass."""
    compiled_share: NotNegativeFloat | None = None
    """Decoder blocks that ran compiled over all blocks, minimum over ranks; null: nothing is compiled, or not known."""
    busiest_experts: dict[str, float] = {}
    """Block of experts -> tokens of its busiest expert over the mean of all, over all ranks in one step after the timed
    window; 1 is even balance. Empty: no experts, or compiled."""
    loading: dict[str, float] = {}
    """The same of the rank that read longest; host_peak_bytes is the maximum over ranks."""
    memory: Memory | None = None
    memory_by_rank: list[Memory] = []
    state: State | None = None
    """Of the rank with most bytes."""
    found: Found | None = None
    startup_s: dict[str, Float] = {}
    mfu: NotNegativeFloat | None = None
    """Model FLOP utilization, attention counted in full; null for an unknown accelerator."""
    mfu_causal: NotNegativeFloat | None = None
    flags: tuple[str, ...] = ()
    """What makes the numbers doubtful: alloc_retries, throttled, unstable, faults, profile_failed,
    compile_incomplete."""
    profile: dict[str, Any] | None = None
    preflight: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None
    search: list[Trial] | None = None
    """Trials of the tuned arm, one of them `kept`."""
    frontier: tuple[Rung, ...] | None = None
    """Rungs of the ladder that were tried."""


def settings_text(settings: dict[str, Any]) -> str:
    """A trial's settings in one line; no settings means the config as given."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items()) or "as given"
