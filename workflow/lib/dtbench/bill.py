"""What a study will cost, before it starts: its missing runs, minutes by records of like runs, dollars by offer."""

import datetime
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dtbench.results.store import missing, scan, wanted
from dtbench.study.matrix import Matrix
from dtbench.study.platforms import PRICES, Price, load_prices, offered
from dtbench.workflow import selected
from harness.contract.errors import SpecError
from harness.contract.record import read_record
from harness.contract.spec import RunSpec

OLD_DAYS = 30
"""A price read longer ago than this is called old."""
NEWEST = 20
"""Most records of a cell that are read, so that a bill appears at once."""
PRINTED = "DTBENCH_BILL_PRINTED"
"""Variable that `dtbench` sets for the Snakemake that it becomes: the bill is on the screen already."""
SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60, 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformBill:
    """The missing runs of one platform."""

    platform: str
    runs: int
    seconds: float
    """Predicted seconds for which the platform is held, by the runs for which similar runs have records."""
    unknown: tuple[str, ...]
    """The cells (`config arm`) whose minutes are unknown, because no similar run has a record."""
    offers: tuple[Price, ...]
    """How it can be bought; the total uses the first. Empty: price unknown."""

    def usd(self, offer: Price) -> float:
        """US dollars of the runs whose minutes are known."""
        return offer.usd_per_hour * self.seconds / SECONDS_PER_HOUR


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """The missing runs of a study."""

    cached: int
    """Runs that have their record and cost nothing."""
    platforms: tuple[PlatformBill, ...]

    @property
    def usd(self) -> float:
        """US dollars of all that is known, by the first offer of each platform."""
        return sum(bill.usd(bill.offers[0]) for bill in self.platforms if bill.offers)

    @property
    def gaps(self) -> list[str]:
        """What must be known before the sum is whole."""
        prices = [f"the price of {bill.platform}" for bill in self.platforms if not bill.offers]
        return prices + [f"the minutes of {cell} on {b.platform}" for b in self.platforms for cell in b.unknown]

    def lines(self, today: datetime.date) -> list[str]:
        """The bill as text."""
        runs = sum(bill.runs for bill in self.platforms)
        said = [f"Bill: {runs + self.cached} runs, {self.cached} cached, {runs} to run"]
        for bill in self.platforms:
            minutes = f"about {bill.seconds / SECONDS_PER_MINUTE:.1f} minutes by records of like runs"
            said.append(f"  {bill.platform}: {bill.runs} runs, {minutes if bill.seconds else 'minutes unknown'}")
            if bill.unknown:
                said.append(f"    minutes unknown, because no like run has a record: {', '.join(bill.unknown)}")
            said += [f"    {_offer(bill, price, today)}" for price in bill.offers]
            if not bill.offers:
                said.append(f"    price unknown: give the platform offers of config/{PRICES}")
        if runs:
            least = "at least " if self.gaps else ""
            total = f"{least}${self.usd:.2f} by the first offers" if self.usd else "dollars unknown"
            said.append(f"  total: {total}; waiting, boot and image pull come on top")
        return said


def _offer(bill: PlatformBill, price: Price, today: datetime.date) -> str:
    age = price.age_days(today)
    old = f", {age} days ago: old, read it again" if age > OLD_DAYS else ""
    sum_ = f"${bill.usd(price):.2f}" if bill.seconds else "dollars unknown"
    return f"{price.offer or price.terms}: {sum_} at ${price.usd_per_hour:.2f} an hour (read on {price.date}{old})"


def bill_of(matrix: Matrix, results: Path, rerun: frozenset[str] = frozenset()) -> Bill:
    """The bill of a study whose records lie in `results`; records of other studies beside it count as like runs."""
    found = scan(results, matrix.runs)
    lacking = missing(results, wanted(found, results, selected(matrix, results, rerun)))
    by_platform: dict[str, list[RunSpec]] = defaultdict(list)
    for spec in lacking.values():
        by_platform[spec.platform.name].append(spec)
    prices = load_prices(matrix.root / "config" / PRICES)
    bills = []
    for name, specs in by_platform.items():
        entry = matrix.platforms[name]
        offers = offered(entry, prices)
        seconds, unknown = _predicted(specs, results.parent)
        bills.append(
            PlatformBill(platform=name, runs=len(specs), seconds=seconds, unknown=unknown, offers=offers)
        )  # fmt: skip
    return Bill(cached=len(matrix.runs) - len(lacking), platforms=tuple(bills))


def print_bill(matrix: Matrix, results: Path, rerun: frozenset[str] = frozenset()) -> Bill:
    """Print the bill of a study and return it."""
    bill = bill_of(matrix, results, rerun)
    print("\n".join(bill.lines(datetime.datetime.now(datetime.UTC).date())), flush=True)
    return bill


def announce(matrix: Matrix, results: Path, rerun: frozenset[str], max_usd: float | None) -> None:
    """Print the bill of a study whose folder lies in `results`. Raises SpecError as `refuse_above` does."""
    bill = print_bill(matrix, results / matrix.study.name, rerun)
    if max_usd is not None:
        refuse_above(bill, max_usd)


def refuse_above(bill: Bill, max_usd: float) -> None:
    """Raises SpecError when a bill is higher than `--max-usd` or cannot be known."""
    if bill.gaps:
        raise SpecError(f"--max-usd: the sum is unknown without {'; '.join(bill.gaps)}; leave --max-usd out to go on")
    if bill.usd > max_usd:
        raise SpecError(f"--max-usd: found a bill of ${bill.usd:.2f}, expected at most ${max_usd:.2f}")


def bill_is_due() -> bool:
    """Whether nobody has printed the bill in this call: `dtbench` does before it becomes Snakemake."""
    return PRINTED not in os.environ


def _predicted(specs: Iterable[RunSpec], stored: Path) -> tuple[float, tuple[str, ...]]:
    """Seconds that the runs will hold their platform, and the cells of which nothing is known."""
    cells: dict[tuple[str, str], list[RunSpec]] = defaultdict(list)
    for spec in specs:
        cells[spec.identity.config, spec.identity.arm].append(spec)
    total, unknown = 0.0, []
    for (config, arm), runs in cells.items():
        took = like_seconds(runs[0], stored)
        if took:
            total += statistics.mean(took) * len(runs)
        else:
            unknown.append(f"{config} {arm}")
    return total, tuple(unknown)


def like_seconds(spec: RunSpec, stored: Path) -> list[float]:
    """Seconds of finished runs, of any study below `stored`, that differ from the spec in their identity alone."""
    place = f"*/{spec.platform.name}/{spec.identity.config}/{spec.identity.arm}/*/a*/record.json"
    files = sorted(stored.glob(place), key=lambda file: file.stat().st_mtime_ns)[-NEWEST:]
    took = []
    for file in files:
        try:
            record = read_record(file)
        except SpecError:
            continue
        if record.source is None and record.outcome == "ok" and record.wall_s and _same(record.spec, spec):
            took.append(record.wall_s)
    return took


def _same(one: RunSpec, other: RunSpec) -> bool:
    """Whether two specs differ in their identity alone: study, repeat, attempt."""
    names = ("platform", "model", "data", "optimizer", "numerics", "protocol", "engine", "environment", "faults")
    return all(getattr(one, name) == getattr(other, name) for name in names)
