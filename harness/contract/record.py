"""The JSON a run leaves behind, whatever happened to it.

Two levels: `RankResult`, what one rank's worker measured (`result-<rank>.json` in the try's folder,
written atomically when the worker finishes), and `Record`, what the supervisor makes of all ranks
and tries. Unmeasured is null, never 0 and never a guess.

Folder of an attempt (OUT):

    spec.json                    the spec as given
    record.json                  last, atomically
    telemetry.jsonl              NVML samples, when there are GPUs
    try-1/launcher.log           what the launcher said
    try-1/rank-<R>.log           stdout and stderr of the rank
    try-1/heartbeat-<R>.json     last sign of life
    try-1/exit-<R>.json          {"rank", "exit_code", "signal"}: how the rank's process ended
    try-1/result-<R>.json        RankResult
    try-1/stacks-<R>.txt         faulthandler's dump, when a stall was found
    try-1/flight-recorder/       dumps, when there are any
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from harness.contract.bounds import check
from harness.contract.codec import decode, encode
from harness.contract.diagnosis import Diagnosis
from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec
from harness.contract.times import check_time
from harness.contract.trial import Trial

RECORD_VERSION = 1


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
    NOT_NEGATIVE: ClassVar = ("mfu", "mfu_causal")

    def __post_init__(self) -> None:
        check(self)
        for index, trial in enumerate(self.search or ()):
            decode(Trial, trial, f"search[{index}]")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How one rank's process ended."""

    rank: int
    exit_code: int | None
    """null when it was ended by a signal or never reported."""
    signal: str | None = None
    """For example SIGKILL."""
    at_s: float | None = None
    """Unix time of the end, as the rank's wrapper saw it; null when it never reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """One training process group inside the attempt."""

    index: int
    remedy: str | None
    environment: dict[str, str]
    """What the remedy added."""
    diagnosis: Diagnosis
    exits: tuple[RankExit, ...]
    launcher_exit_code: int | None
    wall_s: float | None
    """null: a cited source gives none."""
    last_step: int | None
    """Last step any rank reported, 0-based; null when none began."""
    peak_allocated_bytes: int | None = None
    """Last allocated bytes any heartbeat reported, for tries that died."""


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """One file beside the record."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Where it ran."""

    versions: dict[str, str]
    device_name: str | None
    host: dict[str, Any]
    """CPU model, cores, memory, kernel, driver. No host name, no user, no path."""
    git_commit: str | None
    variables: dict[str, str]
    """Variables that change behaviour, by an allow-list of prefixes; secrets never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One attempt's whole story."""

    record_version: int
    source: str | None
    """null: measured by this harness; otherwise where the figures were taken from."""
    spec: RunSpec
    spec_hash: str
    outcome: str
    diagnosis: Diagnosis
    started_at: str | None
    """UTC, ISO 8601."""
    ended_at: str | None
    wall_s: float | None
    tries: tuple[Try, ...]
    measured: Measured | None
    resolved: dict[str, Any] | None
    environment: Environment | None
    files: tuple[File, ...]
    pod: int = 1
    """This is the n-th pod of its Job."""
    notes: tuple[str, ...] = ()
    published: dict[str, Any] = field(default_factory=dict)
    """Figures of a cited source that this harness does not define, for example its NCCL share."""

    NOT_NEGATIVE: ClassVar = ("wall_s",)

    def __post_init__(self) -> None:
        check(self)
        for name in ("started_at", "ended_at"):
            check_time(getattr(self, name), name)
        if self.record_version != RECORD_VERSION:
            raise SpecError(f"record_version: found {self.record_version}, this code reads {RECORD_VERSION}")
        if self.diagnosis.outcome != self.outcome:
            raise SpecError(f"diagnosis.outcome: found {self.diagnosis.outcome!r}, expected {self.outcome!r}")

    @property
    def dagger(self) -> bool:
        """True when the numbers came from a try with a remedy."""
        return bool(self.tries) and self.tries[-1].remedy is not None and self.outcome == "ok"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of the whole record."""
        encoded: dict[str, Any] = encode(self)
        return encoded


def parse_record(plain: Any) -> Record:
    """Decode a record from parsed JSON. Raises SpecError naming the dotted key."""
    return decode(Record, plain)


def read_record(path: Path) -> Record:
    """Read a record file. Raises SpecError naming the file."""
    try:
        return parse_record(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not a JSON text: {error}") from None
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def read_rank_result(path: Path) -> RankResult:
    """Read one rank's result file. Raises SpecError naming the file."""
    try:
        return decode(RankResult, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None
