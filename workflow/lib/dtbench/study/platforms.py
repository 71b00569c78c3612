"""Platforms by name: what a run needs from the world, what it costs, and the variables that shape it."""

import datetime
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from dtbench.study.files import read_mapping
from harness.contract.bounds import check, check_name
from harness.contract.codec import decode, encode, show
from harness.contract.errors import SpecError
from harness.contract.spec import Platform
from harness.contract.variables import check_variables, refuse_secrets


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What the whole platform costs while it is held."""

    usd_per_hour: float
    """US dollars per hour of the whole platform, not of one accelerator."""
    source: str
    """Where the price was read: a URL."""
    date: str
    """The day it was read, ISO 8601: `"2026-01-31"`."""
    terms: str = ""
    """What kind of price it is: on-demand, Spot, region."""

    POSITIVE: ClassVar = ("usd_per_hour",)

    def __post_init__(self) -> None:
        try:
            check(self)
            _check_day(self.date)
        except SpecError as error:
            raise SpecError(f"{error}; leave price out if unknown") from None


def _check_day(text: str) -> None:
    try:
        # Other spellings of ISO 8601 (20250306, 2025-W10-4) are days too, but no reader knows which at a glance.
        if datetime.date.fromisoformat(text).isoformat() == text:
            return
    except ValueError:
        pass
    raise SpecError(f"date: found {show(text)}, expected the day it was read as YYYY-MM-DD, in quotes")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformEntry:
    """One entry of `config/platforms.yaml`: the contract's platform, its variables, price and note."""

    device: Literal["cpu", "cuda"]
    """Where the ranks compute."""
    world_size: int
    """Ranks: one per accelerator, or one per share of the CPU."""
    accelerator: str
    """The field's name of the card: `a100-40gb`, `l4`, `h200`, `cpu`."""
    interconnect: str
    """What links the ranks: `nvlink`, `pcie`, `host-memory`, `loopback`; `none` of one rank."""
    machine_type: str | None = None
    """Cloud machine type; null where there is none."""
    gke_accelerator: str | None = None
    """Value of the node label `cloud.google.com/gke-accelerator`; null where there is none."""
    spot: bool = False
    """Whether GKE may serve it from Spot nodes."""
    cpus: int | None = None
    """CPU cores to request for the pod; null: leave it to the executor."""
    memory_gib: float | None = None
    """Host memory to request for the pod, in GiB."""
    memory_cap_gib: float | None = None
    """Cap on the device allocator per rank, in GiB: a large card made small, not a smaller card."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables every run on this platform gets."""
    price: Price | None = None
    """What it costs; null when unknown: the report then shows no cost instead of a guess."""
    note: str = ""
    """What a reader must know about it; the report prints it under the platform's table."""

    POSITIVE: ClassVar = Platform.POSITIVE

    def __post_init__(self) -> None:
        check(self)
        check_variables(self.environment)
        refuse_secrets(self.environment)


def load_platforms(path: Path) -> dict[str, PlatformEntry]:
    """Every platform of a file, in its order. Raises SpecError naming file and key."""
    try:
        plain = read_mapping(path)
        for name in plain:
            check_name(name, "name of a platform")
        return {name: decode(PlatformEntry, entry, name) for name, entry in plain.items()}
    except SpecError as error:
        text = str(error)
        raise SpecError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def contract_platform(name: str, entry: PlatformEntry) -> dict[str, Any]:
    """The part of an entry that goes into a run's spec, as plain JSON values."""
    plain: dict[str, Any] = encode(entry)
    return {"name": name} | {f.name: plain[f.name] for f in fields(Platform) if f.name != "name"}
