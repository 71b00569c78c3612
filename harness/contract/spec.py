"""The run contract: one fully resolved JSON says everything a run needs, and its hash names the run.

A `RunSpec` is built by the client from a study (never by hand), travels as JSON, and is decoded
strictly by the supervisor: a key that nobody reads is refused. Nothing here has a hidden default:
defaults belong to the study schema and to `engines/`, so that a spec shows what will happen.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from harness.contract.bounds import check
from harness.contract.codec import check_plain, decode, digest_of_text, encode, essential_parts, object_text, read_json
from harness.contract.engines import check_settings, resolve_settings
from harness.contract.engines.descriptor import NUMERIC_DTYPES, Numerics
from harness.contract.errors import SpecError
from harness.contract.variables import check_variables

SPEC_VERSION = 1

Arm = Literal["defaults", "matched", "tuned"]
Dtype = Literal["float32", "bfloat16", "float16"]
FaultKind = Literal[
    "oom", "swallowed_oom", "sleep", "spin", "collective_mismatch", "sigkill", "sigterm", "segfault", "key_error",
    "nan_loss", "shm_full", "disk_full", "port_in_use", "missing_interface", "missing_module",
]  # fmt: skip
"""What `harness/faults.py` can make happen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Which square of which table this run fills."""

    study: str
    config: str
    """Name of the config: an engine with one setting of it, for example `zero-3-offload`."""
    arm: Arm
    repeat: int
    """1 is the first repeat."""
    attempt: int
    """1 is the first launch; `rerun=failed` asks for the next."""
    reference: bool = False
    """True for the run whose losses the parity gate compares others with."""

    POSITIVE: ClassVar = ("repeat", "attempt")
    NAMES: ClassVar = ("study", "config")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """What the run needs from the world."""

    name: str
    device: Literal["cpu", "cuda"]
    world_size: int
    """Ranks, one per accelerator (or one per share of the CPU)."""
    accelerator: str
    """The field's name of the card: `a100-40gb`, `l4`, `h200`, `cpu`."""
    interconnect: str
    """What links the ranks: `nvlink`, `pcie`, `host-memory`, `loopback`; `none` of one rank."""
    machine_type: str | None = None
    """Cloud machine type, for example `a2-highgpu-4g`; null where there is none."""
    gke_accelerator: str | None = None
    """Value of the node label `cloud.google.com/gke-accelerator`; null where there is none."""
    spot: bool = False
    cpus: int | None = None
    """CPU cores to request for the pod; null: leave it to the executor."""
    memory_gib: float | None = None
    """Host memory to request for the pod, in GiB."""
    memory_cap_gib: float | None = None
    """Cap on the device allocator per rank, in GiB: a large card made small. Not a smaller card."""

    POSITIVE: ClassVar = ("world_size", "cpus", "memory_gib", "memory_cap_gib")
    NAMES: ClassVar = ("name",)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A Hugging Face causal LM, built from its config with seeded weights, or pretrained on request."""

    name: str
    config: dict[str, Any]
    """The whole Hugging Face config as JSON (with `model_type`), so that no download is needed."""
    weights: Literal["random", "pretrained"] = "random"
    pretrained: str | None = None
    """Hub name or folder to load from when weights is `pretrained`."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    activation_checkpointing: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if "model_type" not in self.config:
            raise SpecError("config.model_type: missing; a Hugging Face config names its model_type")
        check_plain(self.config, "config")
        if (self.weights == "pretrained") != (self.pretrained is not None):
            raise SpecError("pretrained: give a name or folder exactly when weights is 'pretrained'")


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Seeded token ids, a pure function of (seed, step, micro-step, rank)."""

    sequence_length: int
    micro_batch: int
    """Sequences per rank and micro-step."""
    gradient_accumulation: int = 1
    seed: int = 0
    tokens: Literal["skewed", "structured"] = "skewed"
    """`structured`: a few tokens that mostly follow one another in a fixed order, so that the loss falls and the parity
    gate can compare the fall; `skewed`: the square of a uniform variable, as studies of 2026 had it."""

    POSITIVE: ClassVar = ("sequence_length", "micro_batch", "gradient_accumulation")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """AdamW, with the implementation named: the same mathematics in another kernel is another config."""

    implementation: Literal["torch-fused", "torch-foreach", "deepspeed-fused", "deepspeed-cpu"]
    learning_rate: float = 1e-4
    betas: tuple[float, ...] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    """Global gradient norm to clip to; 0 turns clipping off."""

    POSITIVE: ClassVar = ("learning_rate", "epsilon")
    NOT_NEGATIVE: ClassVar = ("weight_decay", "clip_norm")

    def __post_init__(self) -> None:
        check(self)
        if len(self.betas) != 2:
            raise SpecError(f"betas: found {list(self.betas)}, expected two numbers")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise SpecError(f"betas: found {list(self.betas)}, expected numbers from 0 to below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """How it is measured."""

    warmup_steps: int
    timed_steps: int
    profiled_steps: int = 0
    """Steps of the separate profiled pass; 0 leaves the pass out. Only CUDA devices have one."""
    deadline_s: float = 3600.0
    """The supervisor ends the attempt after this long; waiting for a node does not count."""
    stall_factor: float = 20.0
    """A rank without heartbeat progress for this many median steps is stalled ..."""
    stall_floor_s: float = 60.0
    """... but never sooner than this."""
    startup_stall_s: float = 600.0
    """The same bound before the first step has ended (builds, compilation, NCCL set-up)."""
    remedies: Literal["on", "off"] = "on"
    """Whether an outcome with a known cure gets one second try inside the attempt."""
    parity_steps: int = 5
    """Steps whose loss the parity gate compares with the reference."""
    parity_tolerance: float = 0.02
    """Largest relative loss difference to the reference in those steps."""
    reference_loss: tuple[float, ...] | None = None
    """Losses to hold the run against before timing; null leaves that to the aggregation."""
    preflight: bool = False
    """Measure matmul peak and all-reduce bus bandwidth before the run."""
    telemetry_hz: float = 1.0
    """NVML samples per second from the supervisor; 0 turns them off."""
    trials: tuple[dict[str, Any], ...] = ()
    """Tuned arm: engine settings to try, each as a short run; the fastest is then measured in full."""
    trial_steps: int = 8
    """Timed steps of one trial, after as many warm-up steps as the protocol has."""
    ladder: tuple[int, ...] = ()
    """Fit frontier: sizes that one probe tries, smallest first, until one does not fit."""
    ladder_over: Literal["micro_batch", "sequence_length"] = "micro_batch"

    POSITIVE: ClassVar = (
        "timed_steps", "deadline_s", "stall_factor", "stall_floor_s", "startup_stall_s", "parity_tolerance",
        "trial_steps",
    )  # fmt: skip
    NOT_NEGATIVE: ClassVar = ("warmup_steps", "profiled_steps", "parity_steps", "telemetry_hz")

    def __post_init__(self) -> None:
        check(self)
        if list(self.ladder) != sorted(set(self.ladder)) or any(size < 1 for size in self.ladder):
            raise SpecError(f"ladder: found {list(self.ladder)}, expected rising sizes of 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """The sharding engine and its every setting."""

    name: str
    """One of `harness/contract/engines`."""
    launcher: Literal["torchrun", "deepspeed"]
    settings: dict[str, Any]
    """Complete: every setting of the engine's settings class, none left to a default."""

    def __post_init__(self) -> None:
        check_settings(self.name, self.settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One injected fault: a run that carries any can never pass as a measurement."""

    kind: FaultKind
    rank: int = 0
    step: int = 0
    """Optimizer step (0-based, warm-up counted) at which it strikes; -1: before the first."""
    phase: Literal["load", "init", "forward", "backward", "step"] = "forward"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """One run, fully resolved."""

    spec_version: int
    identity: Identity
    platform: Platform
    model: Model
    data: Data
    optimizer: Optimizer
    numerics: Numerics
    protocol: Protocol
    engine: Engine
    environment: dict[str, str]
    """Environment variables set for every rank."""
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if self.spec_version != SPEC_VERSION:
            raise SpecError(f"spec_version: found {self.spec_version}, this harness reads {SPEC_VERSION}")
        check_variables(self.environment)
        for name in NUMERIC_DTYPES:
            if self.platform.device == "cpu" and getattr(self.numerics, name) == "float16":
                raise SpecError(f"numerics.{name}: float16 does not train on CPU; use bfloat16 or float32")
        for index, fault in enumerate(self.faults):
            if not 0 <= fault.rank < self.platform.world_size:
                raise SpecError(
                    f"faults[{index}].rank: found {fault.rank}, expected 0 to {self.platform.world_size - 1}"
                )
        for index, trial in enumerate(self.protocol.trials):
            resolve_settings(self.engine.name, trial, f"protocol.trials[{index}]")

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, all ranks together."""
        d = self.data
        return d.sequence_length * d.micro_batch * d.gradient_accumulation * self.platform.world_size

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the timed pass: warm-up and timed window."""
        return self.protocol.warmup_steps + self.protocol.timed_steps

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of the whole spec."""
        encoded: dict[str, Any] = encode(self)
        return encoded

    def hash(self) -> str:
        """sha256 of the canonical spec (defaults left out: `codec.essence`): names this attempt."""
        return digest_of_text(object_text(essential_parts(self)))

    def run_hash(self) -> str:
        """sha256 of the canonical spec without its attempt number: names the run across attempts."""
        identity = essential_parts(self.identity)
        del identity["attempt"]
        return digest_of_text(object_text(essential_parts(self) | {"identity": object_text(identity)}))

    def path(self) -> str:
        """Folder of this attempt below the study's folder and below the bucket prefix."""
        i = self.identity
        return f"{self.platform.name}/{i.config}/{i.arm}/r{i.repeat}-{self.run_hash()[:12]}/a{i.attempt}"

    def job_name(self) -> str:
        """A DNS-1123 label of at most 63 characters, the same for the same attempt and no other."""
        i = self.identity
        tail = f"-{self.run_hash()[:12]}-a{i.attempt}"
        text = f"{i.study}-{self.platform.name}-{i.config}-{i.arm}-r{i.repeat}"
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        return slug[: 63 - len(tail)].strip("-") + tail


def parse_spec(plain: Any) -> RunSpec:
    """Decode a spec from parsed JSON. Raises SpecError naming the dotted key."""
    return decode(RunSpec, plain)


def read_spec(path: Path) -> RunSpec:
    """Read a spec file. Raises SpecError naming the file and, for bad JSON, the place in it."""
    plain = read_json(path)
    try:
        return parse_spec(plain)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
