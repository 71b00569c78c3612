"""A study: what one `config/*.yaml` may say, and its defaults."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from harness.contract.bounds import check
from harness.contract.codec import decode
from harness.contract.engines import CONFIGS
from harness.contract.errors import SpecError
from harness.contract.frontier import Bounds, search_bounds
from harness.contract.spec import Arm, Data, Fault, Optimizer, Protocol
from harness.contract.variables import check_variables, refuse_secrets

PROTOCOLS: dict[str, dict[str, Any]] = {
    "careful": {"warmup_steps": 10, "timed_steps": 30},
    "published": {"warmup_steps": 0, "timed_steps": 15},
    "quick": {"warmup_steps": 2, "timed_steps": 5},
}
"""Presets of `protocol`; keys given beside `preset` win over it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """What differs from the defaults, by section of the run spec."""

    engine: dict[str, Any] = field(default_factory=dict)
    """Settings of the engine, see `harness/contract/engines.py`."""
    launcher: Literal["torchrun", "deepspeed"] | None = None
    """Launcher of the ranks; null: the config's own."""
    model: dict[str, Any] = field(default_factory=dict)
    """Keys of the study's `model`."""
    data: dict[str, Any] = field(default_factory=dict)
    """Keys of the study's `data`."""
    optimizer: dict[str, Any] = field(default_factory=dict)
    """Keys of the study's `optimizer`."""
    numerics: dict[str, Any] = field(default_factory=dict)
    """Dtypes by role: parameter, compute, master, optimizer_state, reduce, accumulate."""
    protocol: dict[str, Any] = field(default_factory=dict)
    """Keys of the study's `protocol`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables to add."""

    def __post_init__(self) -> None:
        check_variables(self.environment)
        refuse_secrets(self.environment)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigChoice:
    """One config of the study: a known one, or a variant of it."""

    name: str
    """Name of the config in tables, folders and Jobs."""
    base: str | None = None
    """The known config a variant is derived from; null: the name itself is a known one."""
    override: Override = field(default_factory=Override)
    """What the variant changes."""

    NAMES: ClassVar = ("name",)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """A pattern of cells: every named value of each axis; an axis left out means all of it."""

    platform: tuple[str, ...] | None = None
    """Platforms, a name or a list; null: all."""
    config: tuple[str, ...] | None = None
    """Configs, a name or a list; null: all."""
    arm: tuple[str, ...] | None = None
    """Arms, a name or a list; null: all."""

    def __post_init__(self) -> None:
        for axis in ("platform", "config", "arm"):
            if getattr(self, axis) == ():
                raise SpecError(f"{axis}: found an empty list, which matches no cell; leave it out to match all")

    def match(self, platform: str, config: str, arm: str) -> bool:
        """Whether a cell is one of them."""
        axes = ((self.platform, platform), (self.config, config), (self.arm, arm))
        return all(names is None or found in names for names, found in axes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion(Cells):
    """Cells that are not run, and why."""

    reason: Literal["excluded", "not collected"] = "excluded"
    """The word that tables across platforms show."""
    why: str = ""
    """One sentence for the reader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverrideAt(Cells):
    """An override of some cells."""

    set: Override = field(default_factory=Override)
    """What to change there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierChoice(Cells):
    """One fit frontier to find, for some or all cells: the largest micro-batch or the longest sequence that fits."""

    over: Literal["micro_batch", "sequence_length"] = "micro_batch"
    """What grows; the rest is the study's `data`."""
    limit: int | None = None
    """Largest size to try; null: 64 sequences or 32768 tokens."""
    resolution: int | None = None
    """Sizes are multiples of it; null: 1 sequence or 256 tokens."""
    rungs: int = 8
    """Most sizes that one probe tries."""
    processes: int = 6
    """Most probes per cell."""

    ONE_OR_MORE: ClassVar = Bounds.ONE_OR_MORE

    def __post_init__(self) -> None:
        Cells.__post_init__(self)
        search_bounds(self.over, self.limit, self.resolution, self.rungs, self.processes)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChoice:
    """The model, by the name of a Hugging Face config file in `config/models/`."""

    name: str = "qwen2.5-3b"
    """`config/models/<name>.json`."""
    weights: Literal["random", "pretrained"] = "random"
    """`random`: seeded on the device, no download."""
    pretrained: str | None = None
    """Hub name or folder, when weights is `pretrained`."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation, the same for every engine."""
    activation_checkpointing: bool = False
    """Recompute each decoder block in backward."""
    seed: int = 0
    """Seed of the random weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataChoice(Data):
    """Seeded token ids; the starting point's shape by default."""

    sequence_length: int = 2048
    """Tokens per sequence."""
    micro_batch: int = 1
    """Sequences per rank and micro-step."""
    tokens: Literal["skewed", "structured"] = "structured"
    """What the tokens look like: `structured` has a loss that falls, so that the gate can compare the fall."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolChoice(Protocol):
    """How it is measured; a preset, and keys that win over it."""

    preset: Literal["careful", "published", "quick"] = "careful"
    """`careful`: 10 warm-up and 30 timed steps; `published`: 15 timed; `quick`: for CPUs."""
    warmup_steps: int = 10
    """Steps before the timed window."""
    timed_steps: int = 30
    """Steps of the timed window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerChoice:
    """AdamW; the same hyper-parameters for every engine."""

    implementation: Literal["torch-fused", "torch-foreach", "deepspeed-fused", "deepspeed-cpu"] | None = None
    """Which AdamW; null: what the arm says (matched: torch-fused everywhere)."""
    learning_rate: float = 1e-4
    """Constant learning rate."""
    betas: tuple[float, ...] = (0.9, 0.95)
    """AdamW's two decay rates."""
    epsilon: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.1
    """Decoupled weight decay."""
    clip_norm: float = 1.0
    """Global gradient norm to clip to; 0 turns clipping off."""

    POSITIVE: ClassVar = Optimizer.POSITIVE
    NOT_NEGATIVE: ClassVar = Optimizer.NOT_NEGATIVE

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One study: platforms x configs x arms x repeats, one model, one protocol, one folder of results."""

    name: str
    """Folder of the results; the file's name when left out."""
    title: str = ""
    """Heading of the report; the name when empty."""
    description: str = ""
    """What the study asks, one paragraph for the report."""
    platforms: tuple[str, ...] = ()
    """Platforms by their name in `config/platforms.yaml`; at least one."""
    configs: tuple[ConfigChoice, ...] = tuple(ConfigChoice(name=name) for name in CONFIGS)
    """Configs by name, or variants `{name, base, override}`; the order of the tables."""
    arms: tuple[Arm, ...] = ("defaults", "matched")
    """Numerics rules: `defaults`, `matched`, `tuned`."""
    repeats: int = 3
    """Runs of each cell."""
    seed: int = 0
    """Seed of the order of the runs inside each block."""
    model: ModelChoice = field(default_factory=ModelChoice)
    """What is trained."""
    data: DataChoice = field(default_factory=DataChoice)
    """On what."""
    protocol: ProtocolChoice = field(default_factory=ProtocolChoice)
    """How it is measured."""
    optimizer: OptimizerChoice = field(default_factory=OptimizerChoice)
    """How it steps."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of every run."""
    remedies: bool = True
    """Whether an outcome with a known cure gets one second try inside the attempt."""
    faults: tuple[Fault, ...] = ()
    """Injected faults, for tests: such a run never passes as a measurement."""
    tuned: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    """Trials of the `tuned` arm: engine settings to try, by config or by engine (`fsdp2`, `zero`, `ddp`); every config
    gets equally many. One that is left out gets its engine's six default trials (`dtbench/study/tuning.py`)."""
    frontier: tuple[FrontierChoice, ...] = ()
    """Fit frontiers that the target `frontier` finds: one mapping or a list; the first that names a cell counts."""
    overrides: tuple[OverrideAt, ...] = ()
    """Changes to some cells, applied in order."""
    exclude: tuple[Exclusion, ...] = ()
    """Cells that are not run; the reason stands below the tables."""
    order: tuple[Cells, ...] = ()
    """Most wanted cells first; the rest follows in seeded random order."""
    rows: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Order of one platform's table, when it is not that of `configs`."""
    beside: tuple[str, ...] = ()
    """Other studies of `config/`, by name, whose findings the report sets beside its own where they have records."""
    reference: str = "ddp"
    """The config whose matched run's losses the parity check compares with."""

    ONE_OR_MORE: ClassVar = ("repeats",)
    NOT_EMPTY: ClassVar = ("platforms", "configs", "arms")
    NAMES: ClassVar = ("name",)

    def __post_init__(self) -> None:
        check(self)
        check_variables(self.environment)
        refuse_secrets(self.environment)
        for key in ("platforms", "configs", "arms"):
            names = [getattr(value, "name", value) for value in getattr(self, key)]
            for name in names:
                if names.count(name) > 1:
                    raise SpecError(f"{key}: {name!r} is listed {names.count(name)} times; a cell may occur once")


def parse_study(plain: dict[str, Any], default_name: str) -> Study:
    """Decode a study from parsed YAML. Raises SpecError naming the key."""
    return decode(Study, _normalise({"name": default_name} | plain))


def _normalise(plain: dict[str, Any]) -> dict[str, Any]:
    """Rewrite the short forms people write (a name for a list of one, a preset, `remedies: on`) into the full ones."""
    full = dict(plain)
    for key in Study.NOT_EMPTY:
        # A list whose every line is commented out: nobody means all of them by it.
        if key in full and full[key] is None:
            raise SpecError(f"{key}: found nothing, expected at least one; leave the key out for its default")
    if isinstance(full.get("configs"), list):
        full["configs"] = [{"name": c} if isinstance(c, str) else c for c in full["configs"]]
    if isinstance(full.get("frontier"), dict):
        full["frontier"] = [full["frontier"]]
    for key in ("overrides", "exclude", "order", "frontier"):
        if isinstance(full.get(key), list):
            full[key] = [_list_axes(item) for item in full[key]]
    protocol = full.get("protocol")
    if isinstance(protocol, dict):
        preset = protocol.get("preset", "careful")
        full["protocol"] = (PROTOCOLS.get(preset, {}) if isinstance(preset, str) else {}) | protocol
    # A section left empty in YAML is null: it means the defaults.
    return {key: value for key, value in full.items() if value is not None}


def _list_axes(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    axes = {key: [item[key]] for key in ("platform", "config", "arm") if isinstance(item.get(key), str)}
    return item | axes
