"""A study: what one `config/*.yaml` may say, and its defaults."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from harness.contract.codec import Int, Name, NotNegativeInt, PositiveInt, decode, decode_some
from harness.contract.engines import CONFIGS
from harness.contract.engines.descriptor import Launcher, Numerics
from harness.contract.errors import SpecError
from harness.contract.frontier import search_bounds
from harness.contract.spec import AdamW, Arm, Data, Fault, NamedModel, Optimizer, Protocol
from harness.contract.variables import check_variables, refuse_secrets


class ModelChoice(NamedModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model: a name of `config/models/`, or a Hugging Face config from anywhere."""

    name: str | None = None  # type: ignore[assignment]
    """`config/models/<name>.json`; null: `qwen2.5-3b`. With `config`: name in tables; null: the folder's or file's."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"  # type: ignore[assignment]
    """Attention implementation, the same for every engine; `auto`: sdpa, or eager for a family without SDPA."""
    config: str | None = None
    """A Hugging Face config.json or its folder, relative to the study, then to the working directory; or a Hub id."""


SECTIONS: dict[str, type[Struct]] = {
    "data": Data,
    "optimizer": Optimizer,
    "protocol": Protocol,
    "model": ModelChoice,
    "numerics": Numerics,
}
"""Section of the run spec -> its type; an override names some of its keys."""
PROTOCOLS: dict[str, dict[str, Any]] = {
    "careful": {"warmup_steps": 10, "timed_steps": 30},
    "published": {"warmup_steps": 0, "timed_steps": 15},
    "quick": {"warmup_steps": 2, "timed_steps": 5},
}
"""Presets of `protocol`; keys given beside `preset` win over it."""


MOST_REPEATS = 1000
"""More runs of a cell are a slip of the finger; listing them would take minutes."""
HEADLINE_REPEATS = 3
"""Fewest runs of a cell that `pairs` names."""


class Override(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What differs from the defaults, by section of the run spec."""

    engine: dict[str, Any] = {}
    """Settings of the engine, see `harness/contract/engines/`."""
    launcher: Launcher | None = None
    """Launcher of the ranks; null: the config's own."""
    model: dict[str, Any] = {}
    """Keys of the study's `model`."""
    data: dict[str, Any] = {}
    """Keys of the study's `data`."""
    optimizer: dict[str, Any] = {}
    """Keys of the study's `optimizer`."""
    numerics: dict[str, Any] = {}
    """Dtypes by role: parameter, compute, master, optimizer_state, reduce, accumulate."""
    protocol: dict[str, Any] = {}
    """Keys of the study's `protocol`."""
    environment: dict[str, str] = {}
    """Environment variables to add."""

    def __post_init__(self) -> None:
        for section, kind in SECTIONS.items():
            changes: dict[str, Any] = getattr(self, section)
            changes.update(decode_some(kind, changes, section))
        check_variables(self.environment)
        refuse_secrets(self.environment)


class ConfigChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One config of the study: a known one, or a variant of it."""

    name: Name
    """Name of the config in tables, folders and Jobs."""
    base: str | None = None
    """The known config a variant is derived from; null: the name itself is a known one."""
    override: Override = Override()
    """What the variant changes."""


Names = Annotated[tuple[str, ...], Meta(min_length=1)]


class Cells(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pattern of cells: every named value of each axis; an axis left out means all of it."""

    platform: Names | None = None
    """Platforms, a name or a list; null: all."""
    config: Names | None = None
    """Configs, a name or a list; null: all."""
    arm: Names | None = None
    """Arms, a name or a list; null: all."""

    def match(self, platform: str, config: str, arm: str) -> bool:
        """Whether a cell is one of them."""
        axes = ((self.platform, platform), (self.config, config), (self.arm, arm))
        return all(names is None or found in names for names, found in axes)


class Exclusion(Cells, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells that are not run, and why."""

    reason: Literal["excluded", "not collected"] = "excluded"
    """The word that tables across platforms show."""
    why: str = ""
    """One sentence for the reader."""


class OverrideAt(Cells, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An override of some cells."""

    set: Override = Override()
    """What to change there."""


class FrontierChoice(Cells, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fit frontier to find, for some or all cells: the largest micro-batch or the longest sequence that fits."""

    over: Literal["micro_batch", "sequence_length"] = "micro_batch"
    """What grows; the rest is the study's `data`."""
    limit: PositiveInt | None = None
    """Largest size to try; null: 64 sequences or 32768 tokens."""
    resolution: PositiveInt | None = None
    """Sizes are multiples of it; null: 1 sequence or 256 tokens."""
    rungs: PositiveInt = 8
    """Most sizes that one probe tries."""
    processes: PositiveInt = 6
    """Most probes per cell."""

    def __post_init__(self) -> None:
        search_bounds(self.over, self.limit, self.resolution, self.rungs, self.processes)


class DataChoice(Data, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seeded token ids; the starting point's shape by default."""

    sequence_length: PositiveInt = 2048
    """Tokens per sequence."""
    micro_batch: PositiveInt = 1
    """Sequences per rank and micro-step."""
    tokens: Literal["skewed", "structured"] = "structured"
    """What the tokens look like: `structured` has a loss that falls, so that the gate can compare the fall."""


class ProtocolChoice(Protocol, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it is measured; a preset, and keys that win over it."""

    preset: Literal["careful", "published", "quick"] = "careful"
    """`careful`: 10 warm-up and 30 timed steps; `published`: 15 timed; `quick`: for CPUs."""
    warmup_steps: NotNegativeInt = 10
    """Steps before the timed window."""
    timed_steps: PositiveInt = 30
    """Steps of the timed window."""


class OptimizerChoice(Optimizer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AdamW; the same hyper-parameters for every engine."""

    implementation: AdamW | None = None  # type: ignore[assignment]
    """Which AdamW; null: what the arm says (matched: torch-fused everywhere)."""


class Study(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One study: platforms x configs x arms x repeats, one model, one protocol, one folder of results."""

    name: Name
    """Folder of the results; the file's name when left out."""
    title: str = ""
    """Heading of the report; the name when empty."""
    description: str = ""
    """What the study asks, one paragraph for the report."""
    platforms: Names
    """Platforms by name: of `config/platforms.yaml`, of a `platforms.yaml` beside the study, or `here`, this machine.
    One's own may also be mappings with a `name`. At least one."""
    configs: Annotated[tuple[ConfigChoice, ...], Meta(min_length=1)] = tuple(
        ConfigChoice(name=name) for name, config in CONFIGS.items() if config.usual
    )
    """Configs by name, or variants `{name, base, override}`; the order of the tables."""
    arms: Annotated[tuple[Arm, ...], Meta(min_length=1)] = ("defaults", "matched")
    """Numerics rules: `defaults`, `matched`, `tuned`."""
    repeats: Annotated[int, Meta(ge=1, le=MOST_REPEATS)] = 3
    """Runs of each cell."""
    seed: Int = 0
    """Seed of the order of the runs inside each block."""
    model: ModelChoice = ModelChoice()
    """The model that is trained."""
    data: DataChoice = DataChoice()
    """Data that it is trained on."""
    protocol: ProtocolChoice = ProtocolChoice()
    """How it is measured."""
    optimizer: OptimizerChoice = OptimizerChoice()
    """The optimizer."""
    gradients: Literal["float32", "engine"] = "float32"
    """Arms of equal numerics: what reduced gradients are kept in; `engine`: as each does by itself (ZeRO: bfloat16)."""
    environment: dict[str, str] = {}
    """Environment variables of every run."""
    remedies: bool = True
    """Whether an outcome with a known cure gets one second try inside the attempt."""
    faults: tuple[Fault, ...] = ()
    """Injected faults, for tests: such a run never passes as a measurement."""
    tuned: dict[str, tuple[dict[str, Any], ...]] = {}
    """Trials of the `tuned` arm: engine settings to try, by config or by engine (`fsdp2`, `zero`, `ddp`); every config
    gets equally many. One that is left out gets its engine's six default trials."""
    frontier: tuple[FrontierChoice, ...] = ()
    """Fit frontiers that the target `frontier` finds: one mapping or a list; the first that names a cell counts."""
    overrides: tuple[OverrideAt, ...] = ()
    """Changes to some cells, applied in order."""
    exclude: tuple[Exclusion, ...] = ()
    """Cells that are not run; the reason stands below the tables."""
    pairs: tuple[Annotated[tuple[str, ...], Meta(min_length=2)], ...] = ()
    """Configs whose ratio is a headline: each repeat runs those of an entry one after the other, in turn in this order
    and in the reverse one, and three repeats at least. In no entry, the same sharding by two engines makes a pair."""
    order: tuple[Cells, ...] = ()
    """Most wanted cells first; the rest follows in seeded random order."""
    rows: dict[str, tuple[str, ...]] = {}
    """Order of one platform's table, when it is not that of `configs`."""
    beside: tuple[str, ...] = ()
    """Other studies of `config/`, by name, whose findings the report sets beside its own where they have records."""
    reference: str = "ddp"
    """The config whose matched run's losses the parity check compares with."""

    def __post_init__(self) -> None:
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
    for key in ("platforms", "configs", "arms"):
        # Every line of the list is commented out. Refuse it, because nobody means "all" by that.
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
