"""Prices from Google's billing catalogue: `dtbench prices update` reads today's and writes config/prices.yaml."""

import argparse
import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtbench.study.platforms import PRICES, Price, load_prices
from harness.contract.errors import HarnessError, SpecError
from harness.contract.files import write_atomically

SERVICE = "services/6F81-5844-456A"
"""Compute Engine's number in the catalogue."""
SOURCE, URL = "google-billing", "https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus"
USAGE = {"on-demand": "OnDemand", "spot": "Preemptible"}
"""Purchase -> the catalogue's word. It has no price for reservations and none that is sure for flex-start."""
NANO = 1e-9
SHAPES = {
    **{f"a2-highgpu-{n}g": ("A2", r"Nvidia Tesla A100 GPU", 12 * n, 85 * n, n) for n in (1, 2, 4, 8)},
    **{f"g2-standard-{c}": ("G2", r"Nvidia L4 GPU", c, 4 * c, n)
       for c, n in ((4, 1), (8, 1), (12, 1), (16, 1), (24, 2), (32, 1), (48, 4), (96, 8))},
}  # fmt: skip
"""Machine type -> family, card, vCPUs, GiB and GPUs: its whole price. Machines that come with SSDs are left out."""


@dataclass(frozen=True, slots=True)
class Part:
    """One entry of the catalogue."""

    description: str
    usage: str
    regions: frozenset[str]
    usd: float
    """US dollars for an hour of one vCPU, one GiB or one GPU."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `dtbench prices`."""
    command.add_argument("action", choices=["update"], help="read Google's catalogue and write config/prices.yaml")
    command.add_argument(
        "rows", nargs="*", default=(), metavar="MACHINE/REGION/PURCHASE", help="rows to add (default: none)"
    )
    command.add_argument("-n", "--dry-run", action="store_true", help="show what would change; write nothing")


def prices(options: argparse.Namespace, root: Path, client: Any = None) -> int:
    """Do it; returns the exit status. Raises HarnessError."""
    path = root / "config" / PRICES
    known = load_prices(path)
    wanted = [key for key in {**known, **dict.fromkeys(options.rows)} if key.partition("/")[0] in SHAPES]
    for key in options.rows:
        if key not in wanted:
            raise SpecError(f"prices: {key}: the parts of this machine are not known; known: {', '.join(SHAPES)}")
    parts = read_parts(client or _client())
    found: dict[str, float] = {}
    for key in wanted:
        try:
            found[key] = round(machine_usd(key, parts), 6)
        except HarnessError as error:
            print(f"{key}: kept: {error}")
            continue
        old = known[key].usd_per_hour if key in known else None
        print(f"{key}: ${found[key]:.6f} an hour, was {'unknown' if old is None else f'${old:.6f}'}")
    if not options.dry_run:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        write_atomically(path, updated(path.read_text(encoding="utf-8"), found, known, today))
        load_prices(path)
    print(f"{len(found)} prices {'read, none written' if options.dry_run else f'written to {path}'}")
    return 0


def _client() -> Any:
    """Google's own client with this machine's login. Raises HarnessError without one."""
    import google.auth
    from google.auth import exceptions
    from google.cloud import billing_v1

    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except exceptions.DefaultCredentialsError:
        raise HarnessError(
            "prices: found no Google login, which the catalogue needs: run gcloud auth application-default login and "
            "enable cloudbilling.googleapis.com, or edit config/prices.yaml by hand"
        ) from None
    return billing_v1.CloudCatalogClient(credentials=credentials, transport="rest")


def read_parts(client: Any) -> list[Part]:
    """The prices of parts, in US dollars. Raises HarnessError in Google's words."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    try:
        return [
            Part(s.description, s.category.usage_type, frozenset(s.service_regions), usd)
            for s in client.list_skus(request={"parent": SERVICE, "currency_code": "USD"})
            if s.category.resource_group in ("CPU", "RAM", "GPU") and (usd := _usd(s)) is not None
        ]
    except (api.GoogleAPICallError, api.RetryError, auth.GoogleAuthError, OSError) as error:
        raise HarnessError(f"prices: {' '.join(str(error).split())[:300]}") from None


def _usd(sku: Any) -> float | None:
    """Price of one unit; None for a price in steps, which is no price of a machine."""
    rates = sku.pricing_info[-1].pricing_expression.tiered_rates if sku.pricing_info else []
    return rates[0].unit_price.units + rates[0].unit_price.nanos * NANO if len(rates) == 1 else None


def machine_usd(key: str, parts: Iterable[Part]) -> float:
    """US dollars an hour of a machine as the sum of its parts. Raises HarnessError when a part has not one price."""
    machine, region, purchase = key.split("/")
    family, card, cpus, gib, gpus = SHAPES[machine]
    if purchase not in USAGE:
        raise HarnessError(f"the catalogue has no {purchase} price of machines")
    spot = purchase == "spot"
    start = "(Spot Preemptible )?" if spot else ""
    patterns = {
        f"{family} vCPU": (rf"{start}{family} Instance Core running in ", cpus),
        f"{family} GiB": (rf"{start}{family} Instance Ram running in ", gib),
        card: (rf"{card} (attached to Spot Preemptible VMs )?running in " if spot else rf"{card} running in ", gpus),
    }
    total, listed = 0.0, [p for p in parts if p.usage == USAGE[purchase] and region in p.regions]
    for name, (pattern, count) in patterns.items():
        usd = {part.usd for part in listed if re.match(pattern, part.description)}
        if len(usd) != 1:
            raise HarnessError(f"{name} in {region}: found {len(usd)} {purchase} prices in the catalogue, expected one")
        total += usd.pop() * count
    return total


def updated(text: str, found: dict[str, float], known: dict[str, Price], today: str) -> str:
    """The price list's text with new prices, their source and day; everything else stays as it is written."""
    if not found:
        return text
    for key, usd in found.items():
        row = f"  {key}:\n    {{provider: google, usd_per_hour: {usd}, source: {SOURCE}}}\n"
        if key in known:
            text, count = re.subn(rf"  {re.escape(key)}:\n    \{{.*\}}\n", row, text)
            if count != 1:
                raise HarnessError(
                    f"config/{PRICES}: {key}: found another layout than one line of values; edit it by hand"
                )
        else:
            text = text.rstrip("\n") + "\n" + row
    source = f'  {SOURCE}:\n    url: {URL}\n    date: "{today}"\n'
    if f"  {SOURCE}:\n" in text:
        return re.sub(rf"  {SOURCE}:\n    url: .*\n    date: .*\n", source, text)
    return text.replace("sources:\n", f"sources:\n{source}", 1)
