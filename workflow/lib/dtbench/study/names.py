"""The names in a study (platforms, configs, patterns of cells, settings to try): all of them must exist."""

from typing import Any

from dtbench.study.definition import Cells, Study
from dtbench.study.platforms import PlatformEntry
from harness.contract.engines import CONFIGS, ENGINES, parse_settings, resolve_settings
from harness.contract.engines.descriptor import Trials
from harness.contract.errors import SpecError, nearest


def check_names(study: Study, platforms: dict[str, PlatformEntry]) -> None:
    """Refuse a study that names what is not there. Raises SpecError naming the key, with the nearest valid name."""
    for index, name in enumerate(study.platforms):
        if name not in platforms:
            own = f"{{name: {name}, device: cuda, world_size: 4, accelerator: l4, interconnect: pcie}}"
            raise SpecError(
                f"platforms[{index}]: unknown platform {name!r}; {nearest(name, tuple(platforms))}; "
                f"`here` is this machine; for one of your own give a mapping: {own}"
            )
    for index, choice in enumerate(study.configs):
        known, key = choice.base or choice.name, "base" if choice.base else "name"
        if known not in CONFIGS:
            raise SpecError(f"configs[{index}].{key}: unknown config {known!r}; {nearest(known, tuple(CONFIGS))}")
        if choice.name in CONFIGS and choice.name != known:
            raise SpecError(
                f"configs[{index}].name: {choice.name!r} is a known config and cannot name a variant of {known!r}; "
                f"choose another name, such as {known}-2"
            )
    axes = {
        "platform": study.platforms,
        "config": tuple(choice.name for choice in study.configs),
        "arm": study.arms,
    }
    for key in ("overrides", "exclude", "order", "frontier"):
        for index, pattern in enumerate(getattr(study, key)):
            _check_pattern(pattern, f"{key}[{index}]", axes)
    for platform, names in study.rows.items():
        if platform not in study.platforms:
            raise SpecError(f"rows.{platform}: not a platform of this study; {nearest(platform, study.platforms)}")
        for name in names:
            if name not in axes["config"]:
                raise SpecError(f"rows.{platform}: {name!r} is not in this study; {nearest(name, axes['config'])}")
            if names.count(name) > 1:
                raise SpecError(f"rows.{platform}: {name!r} is listed {names.count(name)} times; a row occurs once")
    _check_pairs(study.pairs, axes["config"])
    if study.reference not in CONFIGS:
        raise SpecError(f"reference: unknown config {study.reference!r}; {nearest(study.reference, tuple(CONFIGS))}")
    _check_tuned(study)


def _check_pairs(pairs: tuple[tuple[str, ...], ...], allowed: tuple[str, ...]) -> None:
    named = [name for pair in pairs for name in pair]
    for index, pair in enumerate(pairs):
        for name in pair:
            if name not in allowed:
                raise SpecError(f"pairs[{index}]: {name!r} is not in this study; {nearest(name, allowed)}")
            if named.count(name) > 1:
                raise SpecError(
                    f"pairs: {name!r} is listed {named.count(name)} times; put what it is held against into one"
                )


def _check_pattern(pattern: Cells, key: str, axes: dict[str, tuple[str, ...]]) -> None:
    for axis, allowed in axes.items():
        for name in getattr(pattern, axis) or ():
            if name not in allowed:
                raise SpecError(f"{key}.{axis}: {name!r} is not in this study; {nearest(name, allowed)}")


def trials_of(study: Study, config: str, engine: str, settings: dict[str, Any]) -> Trials:
    """The trials of one config: the study's own for it, else the study's for its engine, else the engine's own.

    Raises SpecError for a trial that the engine does not have or that cannot go with the config's settings.
    """
    named = next((name for name in (config, engine) if name in study.tuned), None)
    trials = study.tuned[named] if named else ENGINES[engine].trials(parse_settings(engine, settings))
    for index, trial in enumerate(trials):
        resolve_settings(engine, settings | trial, f"tuned.{named}[{index}]" if named else f"tuned: trial {index + 1}")
    return trials


def _check_tuned(study: Study) -> None:
    """Refuse searches that name no config or engine, and unequal budgets. Raises SpecError."""
    allowed = (*(choice.name for choice in study.configs), *ENGINES)
    for name, trials in study.tuned.items():
        if name not in allowed:
            raise SpecError(f"tuned.{name}: neither a config of this study nor an engine; {nearest(name, allowed)}")
        if not trials:
            raise SpecError(f"tuned.{name}: found no trial, expected at least one; {{}} is the config as given")
    if not study.tuned and "tuned" not in study.arms:
        return
    counts = {}
    for choice in study.configs:
        config = CONFIGS[choice.base or choice.name]
        settings = resolve_settings(config.engine, config.settings)
        counts[choice.name] = len(trials_of(study, choice.name, config.engine, settings))
    if "tuned" in study.arms and len(set(counts.values())) > 1:
        raise SpecError(f"tuned: found unequal numbers of trials {counts}, expected one equal budget for all")
