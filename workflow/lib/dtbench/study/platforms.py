"""Platforms by name: what a run needs from the world, what it costs, and the variables that shape it."""

import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from dtbench.study.files import read_mapping
from harness.contract.codec import Name, PositiveFloat, decode
from harness.contract.errors import SpecError, show
from harness.contract.spec import Platform
from harness.contract.variables import check_variables, refuse_secrets


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the whole platform costs while it is held."""

    usd_per_hour: PositiveFloat
    """US dollars per hour of the whole platform, not of one accelerator."""
    source: str
    """Where the price was read: a URL."""
    date: str
    """The day it was read, ISO 8601: `"2026-01-31"`."""
    terms: str = ""
    """What kind of price it is: on-demand, Spot, region."""

    def __post_init__(self) -> None:
        try:
            # Other spellings of ISO 8601 (20250306, 2025-W10-4) are days too, but no reader knows which at a glance.
            known = datetime.date.fromisoformat(self.date).isoformat() == self.date
        except ValueError:
            known = False
        if not known:
            raise SpecError(
                f"date: found {show(self.date)}, expected the day it was read as YYYY-MM-DD, in quotes; "
                "leave price out if unknown"
            )


class PlatformEntry(Platform, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `config/platforms.yaml` or of a study: a platform, its variables, its price and a note."""

    environment: dict[str, str] = {}  # noqa: RUF012 (msgspec copies it)
    """Environment variables every run on this platform gets."""
    price: Price | None = None
    """What it costs; null when unknown: the report then shows no cost instead of a guess."""
    note: str = ""
    """What a reader must know about it; the report prints it under the platform's table."""

    def __post_init__(self) -> None:
        check_variables(self.environment)
        refuse_secrets(self.environment)


def load_platforms(path: Path) -> dict[str, PlatformEntry]:
    """Every platform of a file, in its order. Raises SpecError naming file and key."""
    plain = read_mapping(path)
    try:
        for name, entry in plain.items():
            decode(Name, name, "name of a platform")
            if isinstance(entry, dict) and "name" in entry:
                raise SpecError(f"{name}.name: unknown key; a platform's name is its key in the file")
        return {
            name: decode(PlatformEntry, {"name": name} | entry if isinstance(entry, dict) else entry, name)
            for name, entry in plain.items()
        }
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def own_platforms(
    study: dict[str, Any], known: dict[str, PlatformEntry]
) -> tuple[dict[str, Any], dict[str, PlatformEntry]]:
    """A parsed study with names alone under `platforms`, and the platforms that it gave there as mappings.

    Raises SpecError naming the key, also for a name that is known already.
    """
    own: dict[str, PlatformEntry] = {}
    listed = study.get("platforms")
    if not isinstance(listed, list):
        return study, own
    names = list(listed)
    for index, given in enumerate(listed):
        if isinstance(given, dict):
            entry = decode(PlatformEntry, given, f"platforms[{index}]")
            if entry.name in known:
                raise SpecError(
                    f"platforms[{index}].name: {entry.name!r} is in config/platforms.yaml already; "
                    "list it by its name alone, or choose another name"
                )
            names[index] = entry.name
            own[entry.name] = entry
    return study | {"platforms": names}, own
