"""`dtbench prices update`: Google's own client against a server that answers as the billing catalogue does."""

import argparse
import datetime
import http.server
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dtbench import cli
from dtbench.cloud.catalogue import SERVICE, URL, machine_usd, prices, read_parts
from dtbench.study.platforms import load_prices
from google.auth.credentials import AnonymousCredentials
from google.cloud import billing_v1
from google.cloud.billing_v1.services.cloud_catalog.transports import CloudCatalogRestTransport

from harness.contract.errors import HarnessError, SpecError
from tests.dtbench.conftest import ROOT


def sku(description: str, group: str, usd: float, usage: str = "OnDemand", *regions: str) -> dict[str, Any]:
    nanos = round(usd * 1e9)
    rate = {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": "0", "nanos": nanos % 10**9}}
    rate["unitPrice"]["units"] = str(nanos // 10**9)  # type: ignore[index]
    return {
        "description": description,
        "category": {"resourceFamily": "Compute", "resourceGroup": group, "usageType": usage},
        "serviceRegions": list(regions or ("us-central1",)),
        "pricingInfo": [{"pricingExpression": {"usageUnit": "h", "tieredRates": [rate]}}],
    }


SKUS = [
    sku("A2 Instance Core running in Americas", "CPU", 0.031611),
    sku("A2 Instance Ram running in Americas", "RAM", 0.004237),
    sku("Nvidia Tesla A100 GPU running in Americas", "GPU", 2.933908),
    sku("Nvidia Tesla A100 80GB GPU running in Americas", "GPU", 3.93),
    sku("Commitment v1: A2 Cpu in Americas for 1 Year", "CPU", 0.019915, "Commit1Yr"),
    sku("Spot Preemptible A2 Instance Core running in Americas", "CPU", 0.01, "Preemptible"),
    sku("Spot Preemptible A2 Instance Ram running in Americas", "RAM", 0.001, "Preemptible"),
    sku("Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas", "GPU", 1.0, "Preemptible"),
    sku("Network Internet Egress", "PremiumInternetEgress", 0.12),
]


@pytest.fixture
def client() -> Iterator[Any]:
    """Google's client, and a catalogue of two pages that records what it was asked."""
    asked: list[str] = []

    class Catalogue(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            second = "pageToken=more" in self.path
            page = {"skus": SKUS[4:]} if second else {"skus": SKUS[:4], "nextPageToken": "more"}
            body = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Catalogue)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    transport = CloudCatalogRestTransport(
        host=f"127.0.0.1:{server.server_port}", url_scheme="http", credentials=AnonymousCredentials()
    )
    found = billing_v1.CloudCatalogClient(transport=transport)
    found.asked = asked
    yield found
    server.shutdown()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    shutil.copy(ROOT / "config" / "prices.yaml", tmp_path / "config")
    return tmp_path


def options(*rows: str, dry_run: bool = False) -> argparse.Namespace:
    return argparse.Namespace(action="update", rows=list(rows), dry_run=dry_run)


def test_a_machine_costs_the_sum_of_its_parts(client: Any) -> None:
    parts = read_parts(client)
    # What Google's own page says of this machine.
    assert machine_usd("a2-highgpu-1g/us-central1/on-demand", parts) == pytest.approx(3.673385)
    assert machine_usd("a2-highgpu-4g/us-central1/spot", parts) == pytest.approx(48 * 0.01 + 340 * 0.001 + 4)
    assert [f"/v1/{SERVICE}/skus" in path and "currencyCode=USD" in path for path in client.asked] == [True, True]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("a2-highgpu-1g/europe-west4/on-demand", "A2 vCPU in europe-west4: found 0 on-demand prices"),
        ("g2-standard-48/us-central1/on-demand", "G2 vCPU in us-central1: found 0"),
        ("a2-highgpu-1g/us-central1/flex-start", "has no flex-start price"),
    ],
)
def test_an_unknown_part_gives_no_price(client: Any, key: str, said: str) -> None:
    with pytest.raises(HarnessError, match=said):
        machine_usd(key, read_parts(client))


def test_an_update_rewrites_what_it_knows(client: Any, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "config" / "prices.yaml"
    before, text = load_prices(path), path.read_text()
    assert prices(options(dry_run=True), root, client) == 0
    assert path.read_text() == text
    assert prices(options(), root, client) == 0
    after = load_prices(path)
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {key for key in before if re.match("a2-highgpu.*/us-central1/(spot|on-demand)", key)}
    today = datetime.datetime.now(datetime.UTC).date()
    assert all(after[key].source == URL and after[key].age_days(today) <= 1 for key in changed)
    assert after["a2-highgpu-4g/us-central1/spot"].usd_per_hour == pytest.approx(4.82)
    assert "a2-highgpu-1g/europe-west4/on-demand: kept: A2 vCPU" in capsys.readouterr().out
    again = path.read_text()
    assert prices(options("a2-highgpu-8g/us-central1/on-demand"), root, client) == 0
    assert load_prices(path)["a2-highgpu-8g/us-central1/on-demand"].usd_per_hour == pytest.approx(8 * 3.673385)
    assert path.read_text().startswith(again.rstrip("\n")), "rows are added, nothing else changes"
    with pytest.raises(SpecError, match="the parts of this machine are not known"):
        prices(options("a3-highgpu-8g/us-central1/spot"), root, client)


def test_no_login_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    assert cli.main(["prices", "update"]) == 64
    assert "found no Google login" in capsys.readouterr().err
