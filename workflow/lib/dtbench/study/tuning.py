"""The tuned arm's declared search: which engine settings are tried, equally many for every config."""

from typing import Any

from dtbench.study.definition import Study
from harness.contract.codec import nearest
from harness.contract.engines import CONFIGS, SETTINGS, resolve_settings
from harness.contract.errors import SpecError

Trials = tuple[dict[str, Any], ...]

AS_GIVEN: dict[str, Any] = {}
_DDP: Trials = (
    AS_GIVEN,
    {"bucket_cap_mb": 100.0},
    {"bucket_cap_mb": 400.0},
    {"compile": True},
    {"compile": True, "bucket_cap_mb": 100.0},
    {"compile": True, "bucket_cap_mb": 400.0},
)
_FSDP2: Trials = (
    AS_GIVEN,
    {"prefetch_depth": 2},
    {"blocks_per_group": 2},
    {"compile": True},
    {"compile": True, "prefetch_depth": 2},
    {"compile": True, "blocks_per_group": 2},
)
_ZERO_BUCKETS: Trials = (
    AS_GIVEN,
    {"overlap_comm": True},
    {"reduce_bucket_size": 50_000_000, "allgather_bucket_size": 50_000_000},
    {"compile": True},
    {"compile": True, "overlap_comm": True},
    {"deepcompile": True},
)
# Stage 0 has no bucket of its own to set: what there is, is tried twice.
_ZERO_0: Trials = 2 * (AS_GIVEN, {"compile": True}, {"deepcompile": True})
_ZERO_3: Trials = (
    AS_GIVEN,
    {"leaf_blocks": True},
    {"param_persistence_threshold": 1_000_000, "prefetch_bucket_size": 200_000_000},
    {"compile": True},
    {"compile": True, "leaf_blocks": True},
    {"deepcompile": True},
)
DEFAULT_TRIALS: dict[tuple[str, int | None], Trials] = {
    ("ddp", None): _DDP,
    ("fsdp2", None): _FSDP2,
    ("zero", 0): _ZERO_0,
    ("zero", 1): _ZERO_BUCKETS,
    ("zero", 2): _ZERO_BUCKETS,
    ("zero", 3): _ZERO_3,
}
"""(engine, its stage if it has one) -> trials when the study names none. No setting here changes numerics."""


def trials_of(study: Study, config: str, engine: str, settings: dict[str, Any]) -> Trials:
    """The trials of one config: the study's own for it, else the study's for its engine, else the default search.

    Raises SpecError for a trial that the engine does not have or that cannot go with the config's settings.
    """
    named = next((name for name in (config, engine) if name in study.tuned), None)
    trials = study.tuned[named] if named else DEFAULT_TRIALS[engine, settings.get("stage")]
    for index, trial in enumerate(trials):
        resolve_settings(engine, settings | trial, f"tuned.{named}[{index}]" if named else f"tuned: trial {index + 1}")
    return trials


def check_tuned(study: Study) -> None:
    """Refuse searches that name no config or engine, and unequal budgets. Raises SpecError."""
    allowed = (*(choice.name for choice in study.configs), *SETTINGS)
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
