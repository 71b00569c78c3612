"""Platforms by name: what a run needs from the world, what it costs, and the variables that shape it."""

import datetime
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from dtbench.study.files import read_mapping
from dtbench.study.here import HERE, this_machine
from harness.contract.codec import Name, NotNegativeFloat, PositiveFloat, PositiveInt, decode
from harness.contract.errors import SpecError, nearest, show
from harness.contract.platform import Offer, Platform
from harness.contract.variables import check_variables, refuse_secrets

PRICES = "prices.yaml"
"""The price list, beside platforms.yaml."""
PARTS = 3
"""Parts of a price's key."""


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

    offer: str = ""
    """Its row in `config/prices.yaml`, `MACHINE/REGION/PURCHASE`; empty for a price given in place."""

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

    def age_days(self, today: datetime.date) -> int:
        """Days since the price was read."""
        return (today - datetime.date.fromisoformat(self.date)).days


class Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where prices were read, and when."""

    url: str
    date: str
    """The day of the reading, ISO 8601."""


class PriceRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of `config/prices.yaml`, whose key is `MACHINE/REGION/PURCHASE`."""

    provider: str
    usd_per_hour: PositiveFloat
    """US dollars per hour of the whole machine."""
    source: str
    """A key under `sources`."""
    terms: str = ""
    """What a reader must know about it; empty: purchase and region say all."""


class PriceList(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`config/prices.yaml`."""

    sources: dict[str, Source]
    prices: dict[str, PriceRow]


Purchase = Literal["on-demand", "spot", "flex-start", "reserved"]
"""How a machine is bought: the last part of a price's key."""


def load_prices(path: Path) -> dict[str, Price]:
    """Every row of a price list by its key. A missing file is an empty list. Raises SpecError naming file and key."""
    if not path.is_file():
        return {}
    try:
        listed = decode(PriceList, read_mapping(path))
        return {key: _price(key, row, listed.sources) for key, row in listed.prices.items()}
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def _price(key: str, row: PriceRow, sources: dict[str, Source]) -> Price:
    machine, region, purchase = [*key.split("/"), "", "", ""][:3]
    if not machine or not region or purchase not in get_args(Purchase) or key.count("/") != PARTS - 1:
        allowed = ", ".join(get_args(Purchase))
        raise SpecError(
            f"prices: found key {show(key)}, expected MACHINE/REGION/PURCHASE with PURCHASE one of {allowed}"
        )
    if row.source not in sources:
        known = nearest(row.source, list(sources))
        raise SpecError(f"prices.{key}.source: found {show(row.source)}; {known}")
    source, terms = sources[row.source], row.terms or f"{purchase}, {region}"
    plain = {"usd_per_hour": row.usd_per_hour, "source": source.url, "date": source.date, "terms": terms, "offer": key}
    return decode(Price, plain, f"prices.{key}")


class PlatformEntry(Platform, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `config/platforms.yaml` or of a study: a platform, how it is bought, its variables and a note."""

    machine_type: str | None = None
    """Cloud machine type, for example `a2-highgpu-4g`; null where there is none."""
    spot: bool = False
    """Whether GKE may serve it from Spot nodes."""
    zone: str | None = None
    """The one zone to use, for example `us-central1-a`; null: any zone of the cluster."""
    cpus: PositiveInt | None = None
    """CPU cores to request for the pod; null: leave it to the executor."""
    memory_gib: PositiveFloat | None = None
    """Host memory to request for the pod, in GiB."""
    slurm_gpu: str | None = None
    """The GPU's type in the site's Slurm, which `sinfo --format=%G` prints as `gpu:TYPE:COUNT`; null: any GPU."""

    environment: dict[str, str] = {}  # noqa: RUF012 (msgspec copies it)
    """Environment variables every run on this platform gets."""
    price: Price | None = None
    """What it costs; null when unknown: the report then shows no cost instead of a guess. `offers` sets it."""
    offers: tuple[str, ...] = ()
    """Rows of `config/prices.yaml` by which it can be bought. The report uses the first, a bill shows all."""
    link_gbit_per_s: PositiveFloat | None = None
    """What one node can send to the others, each way, for the projection to more nodes; null: what a run measured."""
    link_latency_us: NotNegativeFloat = 0.0
    """Time of one small message between two nodes, for the same."""
    note: str = ""
    """What a reader must know about it; the report prints it under the platform's table."""

    def __post_init__(self) -> None:
        Platform.__post_init__(self)
        check_variables(self.environment)
        refuse_secrets(self.environment)

    @property
    def offer(self) -> Offer:
        """How it is bought, for the spec: noted there, not hashed."""
        same = {name: getattr(self, name) for name in Offer.__struct_fields__ if name != "price"}
        return Offer(**same, price=self.offers[0] if self.offers else None)


def load_platforms(path: Path, prices: Path | None = None) -> dict[str, PlatformEntry]:
    """Every platform of a file, in its order; `prices` is the price list where it is not the one beside the file.

    Raises SpecError naming file and key.
    """
    plain = read_mapping(path)
    try:
        for name, entry in plain.items():
            decode(Name, name, "name of a platform")
            if isinstance(entry, dict) and "name" in entry:
                raise SpecError(f"{name}.name: unknown key; a platform's name is its key in the file")
        listed = load_prices(prices or path.with_name(PRICES))
        return {
            name: _priced(
                decode(PlatformEntry, {"name": name} | entry if isinstance(entry, dict) else entry, name), listed
            )
            for name, entry in plain.items()
        }
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def _priced(entry: PlatformEntry, prices: dict[str, Price]) -> PlatformEntry:
    """The platform with the price of its first offer. Raises SpecError for an offer that the price list lacks."""
    if not entry.offers:
        return entry
    if entry.price is not None:
        raise SpecError(f"{entry.name}: found both price and offers; give offers, or a price that no list has")
    for offer in entry.offers:
        if offer not in prices:
            raise SpecError(f"{entry.name}.offers: found {show(offer)}; {nearest(offer, list(prices))}")
    return msgspec.structs.replace(entry, price=offered(entry, prices)[0])


def offered(entry: PlatformEntry, prices: dict[str, Price]) -> tuple[Price, ...]:
    """The price of the whole platform by each of its offers, or the one it states itself; empty when unknown."""
    if not entry.offers:
        return (entry.price,) if entry.price else ()
    whole = [prices[offer] for offer in entry.offers]
    if entry.nodes > 1:  # a row is of one machine
        whole = [
            msgspec.structs.replace(
                price, usd_per_hour=price.usd_per_hour * entry.nodes, terms=f"{price.terms}; {entry.nodes} machines"
            )
            for price in whole
        ]
    return tuple(whole)


def own_platforms(
    study: dict[str, Any], known: dict[str, PlatformEntry], prices: Path
) -> tuple[dict[str, Any], dict[str, PlatformEntry]]:
    """A parsed study with names alone under `platforms`, and the platforms that it gave there as mappings or as `here`.

    `prices` is the file of the price list.

    Raises SpecError naming the key, also for a name that is known already.
    """
    own: dict[str, PlatformEntry] = {}
    listed = study.get("platforms")
    if not isinstance(listed, list):
        return study, own
    names = list(listed)
    for index, given in enumerate(listed):
        if given == HERE and HERE not in known:
            given = {"name": HERE} | this_machine()
        if isinstance(given, dict):
            entry = decode(PlatformEntry, given, f"platforms[{index}]")
            entry = _priced(entry, load_prices(prices) if entry.offers else {})
            if entry.name in known:
                raise SpecError(
                    f"platforms[{index}].name: {entry.name!r} is in platforms.yaml already; "
                    "list it by its name alone, or choose another name"
                )
            names[index] = entry.name
            own[entry.name] = entry
    return study | {"platforms": names}, own
