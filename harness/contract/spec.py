"""The run contract: one fully resolved JSON says everything a run needs, and its hash names the run.

A `RunSpec` is built by the client from a study (never by hand), travels as JSON, and is decoded
strictly by the supervisor: a key that nobody reads is refused. Nothing here has a hidden default:
defaults belong to the study schema and to `engines/`, so that a spec shows what will happen.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from harness.contract.codec import (
    Float,
    Int,
    Name,
    NotNegativeFloat,
    NotNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_plain,
    decode,
    decode_file,
    digest_of_text,
    encode,
    essential_parts,
    object_text,
)
from harness.contract.engines import check_settings, resolve_settings
from harness.contract.engines.descriptor import NUMERIC_DTYPES, Launcher, Numerics
from harness.contract.errors import SpecError
from harness.contract.platform import Offer, Platform, hashed_text, with_offer
from harness.contract.variables import check_variables

SPEC_VERSION = 1

Arm = Literal["defaults", "matched", "tuned"]
FaultKind = Literal[
    "oom", "swallowed_oom", "sleep", "spin", "collective_mismatch", "sigkill", "sigterm", "segfault", "key_error",
    "nan_loss", "shm_full", "disk_full", "port_in_use", "missing_interface", "missing_module",
    "no_update", "learning_rate", "summed_gradients", "repeated_data", "frozen_layer", "dropout",
]  # fmt: skip
"""What `harness/faults.py` can make happen."""
AdamW = Literal["torch-fused", "torch-foreach", "deepspeed-fused", "deepspeed-cpu"]
Beta = Annotated[float, Meta(ge=0, lt=1)]


class Identity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which cell of which table this run fills."""

    study: Name
    """Name of the study, one folder of results."""
    config: Name
    """Name of the config: an engine with one setting of it, for example `zero-3-offload`."""
    arm: Arm
    """Rule for the numerics: as shipped, equal for all engines, or equal with the fastest settings."""
    repeat: PositiveInt
    """1 is the first repeat."""
    attempt: PositiveInt
    """1 is the first launch; `rerun=failed` asks for the next."""
    reference: bool = False
    """True for the run whose losses the parity gate compares others with."""


class NamedModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Hugging Face causal LM by name: what a study may say about its model."""

    name: str
    """Name in tables: `config/models/<name>.json`, or a model of the user's."""
    weights: Literal["random", "pretrained"] = "random"
    """`random`: seeded on the device, no download."""
    pretrained: str | None = None
    """Hub id or folder of safetensors files, when weights is `pretrained`. A study without `name` and `config` takes
    the config from there. A gated model needs its token as HF_TOKEN in the environment of the ranks."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation, the same for every engine."""
    activation_checkpointing: bool | Literal["selective"] = False
    """Recompute each decoder block in backward; `selective`: all of it but matrix products and attention."""
    kernels: Literal["torch", "liger"] = "torch"
    """`liger`: fused Triton kernels for norm, rotary embedding, MLP and loss in every engine; NVIDIA GPUs only."""
    seed: Int = 0
    """Seed of the random weights."""

    def __post_init__(self) -> None:
        if (self.weights == "pretrained") != (self.pretrained is not None):
            raise SpecError("pretrained: give a name or folder exactly when weights is 'pretrained'")


class Model(NamedModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Hugging Face causal LM, built from its config with seeded weights, or pretrained on request."""

    config: dict[str, Any]
    """The whole Hugging Face config as JSON (with `model_type`), so that no download is needed."""

    def __post_init__(self) -> None:
        NamedModel.__post_init__(self)
        if "model_type" not in self.config:
            raise SpecError("config.model_type: missing; a Hugging Face config names its model_type")
        check_plain(self.config, "config")


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seeded token ids, a pure function of (seed, step, micro-step, rank)."""

    sequence_length: PositiveInt
    micro_batch: PositiveInt
    """Sequences per rank and micro-step."""
    gradient_accumulation: PositiveInt = 1
    seed: Int = 0
    tokens: Literal["skewed", "structured"] = "skewed"
    """`structured`: a few tokens that mostly follow one another in a fixed order, so that the loss falls and the parity
    gate can compare the fall; `skewed`: the square of a uniform variable, as studies of 2026 had it."""


class Optimizer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AdamW, with the implementation named: the same mathematics in another kernel is another config."""

    implementation: AdamW
    """Which AdamW."""
    learning_rate: PositiveFloat = 1e-4
    """Constant learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """AdamW's two decay rates."""
    epsilon: PositiveFloat = 1e-8
    """AdamW's epsilon."""
    weight_decay: NotNegativeFloat = 0.1
    """Decoupled weight decay."""
    clip_norm: NotNegativeFloat = 1.0
    """Global gradient norm to clip to; 0 turns clipping off."""


class Protocol(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it is measured."""

    warmup_steps: NotNegativeInt
    """Steps before the timed window."""
    timed_steps: PositiveInt
    """Steps of the timed window."""
    profiled_steps: NotNegativeInt = 0
    """Steps of the separate profiled pass; 0 leaves the pass out. Only CUDA devices have one."""
    deadline_s: PositiveFloat = 3600.0
    """The supervisor ends the attempt after this long; waiting for a node does not count."""
    stall_factor: PositiveFloat = 20.0
    """A rank without heartbeat progress for this many median steps is stalled ..."""
    stall_floor_s: PositiveFloat = 60.0
    """... but never sooner than this."""
    startup_stall_s: PositiveFloat = 600.0
    """The same bound before the first step has ended (builds, compilation, NCCL set-up)."""
    remedies: Literal["on", "off"] = "on"
    """Whether an outcome with a known cure gets one second try inside the attempt."""
    parity_steps: NotNegativeInt = 5
    """Steps whose loss the parity gate compares with the reference."""
    parity_tolerance: PositiveFloat = 0.02
    """Largest relative loss difference to the reference in those steps."""
    reference_loss: tuple[Float, ...] | None = None
    """Losses to compare the run with before timing; null leaves the comparison to the report."""
    preflight: bool = False
    """Measure matmul peak and all-reduce bus bandwidth before the run."""
    telemetry_hz: NotNegativeFloat = 1.0
    """NVML samples per second from the supervisor; 0 turns them off."""
    trials: tuple[dict[str, Any], ...] = ()
    """Tuned arm: engine settings to try, each as a short run; the fastest is then measured in full."""
    trial_steps: PositiveInt = 8
    """Timed steps of one trial, after as many warm-up steps as the protocol has."""
    ladder: tuple[PositiveInt, ...] = ()
    """Fit frontier: sizes that one probe tries, smallest first, until one does not fit."""
    ladder_over: Literal["micro_batch", "sequence_length"] = "micro_batch"

    def __post_init__(self) -> None:
        if list(self.ladder) != sorted(set(self.ladder)):
            raise SpecError(f"ladder: found {list(self.ladder)}, expected rising sizes")


class Engine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sharding engine and its every setting."""

    name: str
    """One of `harness/contract/engines`."""
    launcher: Launcher
    settings: dict[str, Any]
    """Complete: every setting of the engine's settings class, none left to a default."""

    def __post_init__(self) -> None:
        check_settings(self.name, self.settings)


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One injected fault: a run that carries any can never pass as a measurement."""

    kind: FaultKind
    rank: Int = 0
    step: Int = 0
    """Optimizer step (0-based, warm-up counted) at which it strikes; -1: before the first."""
    phase: Literal["load", "init", "forward", "backward", "step"] = "forward"


class RunSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, fully resolved."""

    spec_version: Int
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
    offer: Offer = Offer()
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if self.spec_version != SPEC_VERSION:
            raise SpecError(f"spec_version: found {self.spec_version}, this harness reads {SPEC_VERSION}")
        check_variables(self.environment)
        if self.platform.device == "cpu" and self.model.kernels == "liger":
            raise SpecError("model.kernels: found 'liger', whose kernels need a GPU; use 'torch' on a CPU platform")
        if self.model.activation_checkpointing == "selective" and self.engine.settings.get("compile"):
            raise SpecError(
                "model.activation_checkpointing: found 'selective' beside compile, where torch decides what to keep; "
                "give one of them"
            )
        for name in NUMERIC_DTYPES:
            if self.platform.device == "cpu" and getattr(self.numerics, name) == "float16":
                raise SpecError(f"numerics.{name}: float16 does not train on CPU; use bfloat16 or float32")
        for index, fault in enumerate(self.faults):
            if not 0 <= fault.rank < self.platform.world_size:
                raise SpecError(
                    f"faults[{index}].rank: found {fault.rank}, expected 0 to {self.platform.world_size - 1}"
                )
        for index, trial in enumerate(self.protocol.trials):
            resolve_settings(self.engine.name, self.engine.settings | trial, f"protocol.trials[{index}]")

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
        """sha256 of the canonical spec (no defaults: `codec.essence`; no offer): names this attempt."""
        return digest_of_text(object_text(self._parts()))

    def run_hash(self) -> str:
        """sha256 of the canonical spec without its attempt number: names the run across attempts."""
        identity = essential_parts(self.identity)
        del identity["attempt"]
        return digest_of_text(object_text(self._parts() | {"identity": object_text(identity)}))

    def _parts(self) -> dict[str, str]:
        """Canonical JSON of what is measured, by section."""
        parts = essential_parts(self)
        parts.pop("offer", None)
        text = hashed_text(self.platform)
        return parts if text is None else parts | {"platform": text}

    def is_same_run(self, other: "RunSpec") -> bool:
        """Whether the other measures the same, however it is bought."""
        return self == structs.replace(other, offer=self.offer)

    def path(self) -> str:
        """Folder of this attempt below the study's folder and below the bucket prefix."""
        i = self.identity
        return f"{self.platform.name}/{i.config}/{i.arm}/r{i.repeat}-{self.run_hash()[:12]}/a{i.attempt}"

    def job_name(self) -> str:
        """A DNS-1123 label of at most 63 characters, the same for the same attempt and no other.

        On several nodes it leaves room for a pod's index, because `<job>-<index>` is the pod's host name.
        """
        i = self.identity
        tail = f"-{self.run_hash()[:12]}-a{i.attempt}"
        text = f"{i.study}-{self.platform.name}-{i.config}-{i.arm}-r{i.repeat}"
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        index = len(f"-{self.platform.nodes - 1}") if self.platform.nodes > 1 else 0
        return slug[: 63 - len(tail) - index].strip("-") + tail


def parse_spec(plain: Any) -> RunSpec:
    """Decode a spec from parsed JSON. Raises SpecError naming the dotted key."""
    return decode(RunSpec, with_offer(plain))


def read_spec(path: Path) -> RunSpec:
    """Read a spec file. Raises SpecError naming the file and, for bad JSON, the place in it."""
    return decode_file(RunSpec, path, with_offer)
