"""The engines and configs that a study may name and override. To add an engine, add its name to `ENGINES`."""

from typing import Any, Literal, get_args

from harness.contract.codec import decode, defaults_of, encode
from harness.contract.engines.ddp import DDP
from harness.contract.engines.descriptor import Config, Descriptor
from harness.contract.engines.fsdp2 import FSDP2
from harness.contract.engines.megatron_fsdp import MEGATRON_FSDP
from harness.contract.engines.zero import ZERO
from harness.contract.errors import SpecError, nearest

ENGINES: dict[str, Descriptor] = {engine.name: engine for engine in (DDP, ZERO, FSDP2, MEGATRON_FSDP)}
CONFIGS: dict[str, Config] = {config.name: config for engine in ENGINES.values() for config in engine.configs}
"""Every config a study may name, in the order tables list them when a study gives none."""

Fact = Literal["engine", "shards", "offloads", "keeps_gathered", "replicates"]


def pairs_apart_by(fact: Fact) -> tuple[tuple[Config, Config], ...]:
    """Pairs of configs that differ in this fact alone; the later one in `CONFIGS` comes first.

    Apart by "engine", the two shard alike under different engines. Apart by "shards", they are two stages of one
    engine. Apart by "offloads", "keeps_gathered" or "replicates", one config does it and the other is the same without
    it.
    """
    others = [name for name in get_args(Fact) if name != fact]
    return tuple(
        (later, earlier)
        for index, later in enumerate(CONFIGS.values())
        for earlier in list(CONFIGS.values())[:index]
        if getattr(later, fact) != getattr(earlier, fact)
        and all(getattr(later, name) == getattr(earlier, name) for name in others)
    )


def resolve_settings(engine: str, overrides: dict[str, Any], key: str = "settings") -> dict[str, Any]:
    """Complete an engine's settings. Raises SpecError naming an override that the engine does not have."""
    for name in overrides:
        others = [other.name for other in ENGINES.values() if name in other.settings.__struct_fields__]
        if others and engine not in others:
            raise SpecError(f"{key}.{name}: a setting of {' and '.join(others)}, which {engine} does not have")
    resolved: dict[str, Any] = encode(parse_settings(engine, overrides, key))
    known = ENGINES[engine]
    defaults = {name: defaults_of(known.settings)[name] for name in known.added}
    return {name: value for name, value in resolved.items() if name not in defaults or value != defaults[name]}


def check_settings(engine: str, settings: dict[str, Any]) -> None:
    """Refuse an unknown engine, and settings that are unknown, ill-typed or incomplete. Raises SpecError."""
    if engine not in ENGINES:
        raise SpecError(f"name: found {engine!r}; {nearest(engine, tuple(ENGINES))}")
    resolved = resolve_settings(engine, settings)
    missing = [name for name in resolved if name not in settings]
    if missing:
        raise SpecError(f"settings.{missing[0]}: missing; a spec states every setting of its engine")


def parse_settings(engine: str, settings: dict[str, Any], key: str = "settings") -> Any:
    """An instance of the engine's settings class. Raises SpecError."""
    return decode(ENGINES[engine].settings, settings, key)
