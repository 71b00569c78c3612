"""The price list: every row says where and when it was read, and platforms are priced by its rows."""

import datetime
from pathlib import Path

import pytest
from dtbench.study.platforms import load_platforms, load_prices

from harness.contract.errors import SpecError

CONFIG = Path(__file__).resolve().parents[3] / "config"
LIST = """
sources: {page: {url: "https://example.com", date: "2026-01-31"}}
prices:
  big-4/here/spot: {provider: some, usd_per_hour: 3.5, source: page}
"""
PLATFORM = "mine: {device: cuda, world_size: 4, accelerator: big, interconnect: nvlink, offers: [%s]}\n"


def write(folder: Path, prices: str = LIST, offer: str = "big-4/here/spot") -> Path:
    (folder / "prices.yaml").write_text(prices)
    (folder / "platforms.yaml").write_text(PLATFORM % offer)
    return folder / "platforms.yaml"


def test_thirty_shapes_name_source_and_day() -> None:
    prices = load_prices(CONFIG / "prices.yaml")
    assert len(prices) >= 30
    assert all("github" in price.source and price.terms for price in prices.values())
    assert {key.rpartition("/")[2] for key in prices} >= {"on-demand", "spot", "reserved"}


def test_platforms_are_priced_by_the_list() -> None:
    prices, platforms = load_prices(CONFIG / "prices.yaml"), load_platforms(CONFIG / "platforms.yaml")
    offered = [entry for entry in platforms.values() if entry.offers]
    assert {entry.name for entry in offered} == {"a100-40gb-x4", "a100-80gb-x4"}
    assert all(entry.price == prices[entry.offers[0]] for entry in offered)
    assert all(offer.startswith(f"{entry.machine_type}/") for entry in offered for offer in entry.offers)


def test_a_price_knows_its_age(tmp_path: Path) -> None:
    price = load_platforms(write(tmp_path))["mine"].price
    assert price and (price.usd_per_hour, price.age_days(datetime.date(2026, 3, 2))) == (3.5, 30)


def test_several_machines_cost_several_prices(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("world_size: 4", "world_size: 8, nodes: 2"))
    price = load_platforms(path)["mine"].price
    assert price and (price.usd_per_hour, price.terms) == (7.0, "spot, here; 2 machines")


@pytest.mark.parametrize(
    ("prices", "offer", "message"),
    [
        (LIST, "big-4/there/spot", r"mine\.offers: found 'big-4/there/spot'.*did you mean 'big-4/here/spot'"),
        (LIST.replace("/spot", "/cheap"), "x", r"found key 'big-4/here/cheap', expected MACHINE/REGION/PURCHASE"),
        (LIST.replace("source: page", "source: pgae"), "x", r"\.source: found 'pgae'.*did you mean 'page'"),
        (LIST.replace("2026-01-31", "31.1.2026"), "x", r"date: found '31\.1\.2026', expected the day"),
        (LIST.replace("3.5", "0"), "x", r"usd_per_hour: found 0, expected more than 0"),
    ],
)
def test_a_wrong_row_is_refused_with_its_key(tmp_path: Path, prices: str, offer: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_platforms(write(tmp_path, prices, offer))
