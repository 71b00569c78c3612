"""The tuned arm's declared search: which engine settings are tried, equally many for every config."""

from typing import Any

from dtbench.study.definition import Study
from harness.contract.codec import nearest
from harness.contract.engines import CONFIGS, ENGINES, parse_settings, resolve_settings
from harness.contract.engines.descriptor import Trials
from harness.contract.errors import SpecError


def trials_of(study: Study, config: str, engine: str, settings: dict[str, Any]) -> Trials:
    """The trials of one config: the study's own for it, else the study's for its engine, else the engine's own.

    Raises SpecError for a trial that the engine does not have or that cannot go with the config's settings.
    """
    named = next((name for name in (config, engine) if name in study.tuned), None)
    trials = study.tuned[named] if named else ENGINES[engine].trials(parse_settings(engine, settings))
    for index, trial in enumerate(trials):
        resolve_settings(engine, settings | trial, f"tuned.{named}[{index}]" if named else f"tuned: trial {index + 1}")
    return trials


def check_tuned(study: Study) -> None:
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
