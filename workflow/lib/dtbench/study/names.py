"""The names in a study: platforms, configs and patterns of cells that must exist."""

from dtbench.study.definition import Cells, Study
from dtbench.study.platforms import PlatformEntry
from dtbench.study.tuning import check_tuned
from harness.contract.codec import nearest
from harness.contract.engines import CONFIGS
from harness.contract.errors import SpecError


def check_names(study: Study, platforms: dict[str, PlatformEntry]) -> None:
    """Refuse a study that names what is not there. Raises SpecError naming the key, with the nearest valid name."""
    for index, name in enumerate(study.platforms):
        if name not in platforms:
            raise SpecError(f"platforms[{index}]: unknown platform {name!r}; {nearest(name, tuple(platforms))}")
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
    if study.reference not in CONFIGS:
        raise SpecError(f"reference: unknown config {study.reference!r}; {nearest(study.reference, tuple(CONFIGS))}")
    check_tuned(study)


def _check_pattern(pattern: Cells, key: str, axes: dict[str, tuple[str, ...]]) -> None:
    for axis, allowed in axes.items():
        for name in getattr(pattern, axis) or ():
            if name not in allowed:
                raise SpecError(f"{key}.{axis}: {name!r} is not in this study; {nearest(name, allowed)}")
