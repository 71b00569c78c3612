"""From a study to its cells and fully resolved runs; whatever cannot be run is refused here, before anything starts."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, structs

from dtbench.study.cell import Cell, Group, ordered
from dtbench.study.definition import SECTIONS, ConfigChoice, Override, Study, parse_study
from dtbench.study.families import check_models, choose_attention
from dtbench.study.files import find_named, is_file, is_folder, read_mapping
from dtbench.study.models import locate_weights, study_model
from dtbench.study.names import check_names, trials_of
from dtbench.study.platforms import PRICES, PlatformEntry, load_platforms, own_platforms
from harness.contract.codec import digest, encode
from harness.contract.engines import CONFIGS, ENGINES, parse_settings, resolve_settings
from harness.contract.errors import SpecError, clip_path, nearest
from harness.contract.platform import Platform
from harness.contract.spec import (
    SPEC_VERSION,
    Arm,
    Data,
    Engine,
    Identity,
    Model,
    Optimizer,
    Protocol,
    RunSpec,
)

T = TypeVar("T", bound=Struct)

PLATFORMS = "platforms"
"""The one file of `config/` that is no study."""
NOT_STUDIES = (PLATFORMS, "prices")
"""Files of config/ that are no studies."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A study with all its names resolved."""

    path: Path
    root: Path
    """The checkout, where studies are found by name."""
    study: Study
    platforms: dict[str, PlatformEntry]
    cells: tuple[Cell, ...]
    groups: tuple[Group, ...]
    """Every run as its attempt 1, in the order to launch them; a group's runs follow one another on one machine."""

    @cached_property
    def runs(self) -> tuple[RunSpec, ...]:
        """The runs of all groups, in their order."""
        return tuple(spec for group in self.groups for spec in group)

    @property
    def digest(self) -> str:
        """Changes whenever a table or a sentence of the report may: with the study or its platforms."""
        return digest([encode(self.study), [encode(self.platforms[name]) for name in self.study.platforms]])


def load_matrix(name: str, root: Path) -> Matrix:
    """Read `config/<name>.yaml`, or the file that `name` is a path to. Raises SpecError naming file and key."""
    path = _study_path(name, root)
    platforms = _platforms(path, root)
    plain = read_mapping(path)
    try:
        plain, own = own_platforms(plain, platforms, root / "config" / PRICES)
        platforms |= own
        study = parse_study(plain, path.stem.lower())
        check_names(study, platforms)
        asked = study.model
        named = study_model(asked.name, asked.config, asked.pretrained, root, path.parent, "model")["name"]
        config = asked.config or (asked.pretrained if asked.name is None else None)
        # The report prints the name.
        study = structs.replace(study, model=structs.replace(asked, name=named, config=config))
        cells = tuple(_cells(study, platforms, root, path.parent))
        check_models(cell.spec.model for cell in cells if cell.spec)
        _check_exclusions(study, cells)
        for other in study.beside:
            find_named("beside", other, root / "config", ".yaml", skip=NOT_STUDIES)
        groups = ordered(study, cells)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply; expected a few levels of lists and mappings") from None
    return Matrix(path=path, root=root, study=study, platforms=platforms, cells=cells, groups=groups)


def _platforms(study: Path, root: Path) -> dict[str, PlatformEntry]:
    """Those of the checkout, and those of a `platforms.yaml` beside the study, which may not take a known name."""
    shipped, beside = root / "config" / f"{PLATFORMS}.yaml", study.with_name(f"{PLATFORMS}.yaml")
    known = load_platforms(shipped)
    if not is_file(beside) or beside.resolve() == shipped.resolve():
        return known
    own = load_platforms(beside, root / "config" / PRICES)
    for name in own.keys() & known.keys():
        raise SpecError(f"{beside}: {name}: is in config/platforms.yaml already; choose another name")
    return known | own


def _study_path(name: str, root: Path) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if is_file(path):
            return path
        found = "a folder" if is_folder(path) else "no such file"
        siblings = sorted(p.name for p in path.parent.glob("*.y*ml") if is_file(p)) if is_folder(path.parent) else []
        hint = f"; in that folder, {nearest(path.name, siblings)}" if siblings else ""
        raise SpecError(
            f"study={clip_path(name)}: {found}; give a path to a file, or the name of a study in config/{hint}"
        )
    return find_named("study", name, root / "config", ".yaml", skip=NOT_STUDIES)


def _check_exclusions(study: Study, cells: tuple[Cell, ...]) -> None:
    for index, pattern in enumerate(study.exclude):
        if not any(cell.exclusion is pattern for cell in cells):
            raise SpecError(f"exclude[{index}]: matches no cell that is not excluded already; remove it")


def _cells(study: Study, platforms: dict[str, PlatformEntry], root: Path, folder: Path) -> Iterator[Cell]:
    shared = _shared_sections(study, root, folder)
    for platform in study.platforms:
        for index, choice in enumerate(study.configs):
            for arm in study.arms:
                exclusion = next((e for e in study.exclude if e.match(platform, choice.name, arm)), None)
                usual = shared | _own_sections(study, platforms[platform], choice, arm, shared)
                found = _override(usual, choice.override, f"configs[{index}].override", root, folder)
                for number, override in enumerate(study.overrides):
                    if override.match(platform, choice.name, arm):
                        found = _override(found, override.set, f"overrides[{number}].set", root, folder)
                usual, found = (one | {"model": choose_attention(one["model"])} for one in (usual, found))
                departs = _departures(usual, found)
                if arm != "defaults" and study.gradients == "float32" and not departs["numerics"]:
                    found, word = _float32_gradients(found)
                    departs["engine"] += word
                spec = RunSpec(spec_version=SPEC_VERSION, faults=study.faults, **found)
                yield Cell(
                    platform=platform,
                    config=choice.name,
                    arm=arm,
                    spec=None if exclusion else spec,
                    exclusion=exclusion,
                    base=choice.base or choice.name,
                    departs=departs,
                )


def _float32_gradients(sections: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Promise gradients kept in float32 where the engine can do that; says so in words where it cannot."""
    engine, numerics = sections["engine"], sections["numerics"]
    if numerics.accumulate == "float32":
        return sections, ()
    if ENGINES[engine.name].float32_gradients(parse_settings(engine.name, engine.settings)):
        return sections | {"numerics": structs.replace(numerics, accumulate="float32")}, ()
    return sections, (f"gradients: arm promises float32, engine keeps {numerics.accumulate}",)


def _shared_sections(study: Study, root: Path, folder: Path) -> dict[str, Any]:
    """The sections of the spec that are alike in every cell, before overrides."""
    asked = study.model
    model = study_model(asked.name, asked.config, asked.pretrained, root, folder, "model")
    return {
        "model": _section(Model, asked, **model),
        "data": _section(Data, study.data),
        "protocol": _section(Protocol, study.protocol, remedies="on" if study.remedies else "off"),
    }


def _own_sections(
    study: Study, entry: PlatformEntry, choice: ConfigChoice, arm: Arm, shared: dict[str, Any]
) -> dict[str, Any]:
    """The other sections of a cell's spec, before overrides; the protocol again where the arm has trials."""
    config = CONFIGS[choice.base or choice.name]
    engine, ships = ENGINES[config.engine], arm == "defaults"
    settings = resolve_settings(engine.name, config.settings)
    native = engine.optimizer(entry.device, config.offloads) if ships else "torch-fused"
    sections = {
        "identity": Identity(
            study=study.name,
            config=choice.name,
            arm=arm,
            repeat=1,
            attempt=1,
            reference=config.name == study.reference and arm == "matched",
        ),
        "platform": _section(Platform, entry),
        "offer": entry.offer,
        "optimizer": _section(Optimizer, study.optimizer, implementation=study.optimizer.implementation or native),
        "numerics": engine.shipped if ships else engine.matched,
        "engine": Engine(name=engine.name, launcher=engine.launcher, settings=settings),
        "environment": entry.environment | study.environment,
    }
    if arm == "tuned":
        trials = trials_of(study, choice.name, engine.name, settings)
        sections["protocol"] = structs.replace(shared["protocol"], trials=trials)
    return sections


def _section(kind: type[T], chosen: Struct, **given: Any) -> T:
    """A section of the spec from what the study says about it, with some fields given."""
    named = {name: getattr(chosen, name) for name in kind.__struct_fields__ if name not in given}
    try:
        return kind(**named, **given)
    except SpecError as error:
        raise SpecError(f"{kind.__name__.lower()}.{error}") from None


def _override(sections: dict[str, Any], override: Override, key: str, root: Path, folder: Path) -> dict[str, Any]:
    """The sections with an override laid over them. Raises SpecError naming a value that does not go with the rest."""
    found = dict(sections)
    for section in SECTIONS:
        changes = getattr(override, section)
        if section == "model" and changes.keys() & {"name", "config"}:
            name, config, weights = (changes.get(word) for word in ("name", "config", "pretrained"))
            changes = changes | study_model(name, config, weights, root, folder, f"{key}.model")
        elif section == "model" and "pretrained" in changes:
            changes = changes | {"pretrained": locate_weights(changes["pretrained"], folder, f"{key}.model")}
        if changes:
            try:
                found[section] = structs.replace(found[section], **changes)
            except SpecError as error:
                raise SpecError(f"{key}.{section}.{error}") from None
    engine: Engine = found["engine"]
    if override.engine or override.launcher:
        settings = resolve_settings(engine.name, engine.settings | override.engine, f"{key}.engine")
        launcher = override.launcher or engine.launcher
        found["engine"] = Engine(name=engine.name, launcher=launcher, settings=settings)
    found["environment"] = found["environment"] | override.environment
    return found


WORDS = {"micro_batch": "micro-batch", "sequence_length": "sequence", "name": "model"}
"""Key of a spec -> how the report calls it, where that is not the key with spaces."""


def _departures(usual: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Section -> where overrides make a spec differ from what the study says for its arm, as words for a table.

    Other data, model, numerics or optimizer make a comparison another one; settings and variables are what a study
    compares.
    """
    pairs = {name: (encode(usual[name]), encode(found[name])) for name in ("data", "model", "numerics", "optimizer")}
    pairs["engine"] = usual["engine"].settings, found["engine"].settings
    said = {
        section: tuple(_word(k, v) for k, v in after.items() if k != "config" and v != before.get(k))
        for section, (before, after) in pairs.items()
    }
    variables = usual["environment"]
    said["environment"] = tuple(f"{k}={v}" for k, v in found["environment"].items() if variables.get(k) != v)
    return said


def _word(key: str, value: Any) -> str:
    word = WORDS.get(key, key.replace("_", " "))
    if isinstance(value, bool):
        return word if value else f"no {word}"
    return f"{word} {value}"
