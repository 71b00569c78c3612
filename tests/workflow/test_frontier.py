"""The target `frontier` through the real Snakemake, and its plan for a machine without one."""

import csv
import os
import subprocess
import sys

import pytest

from harness.contract.codec import decode_file
from harness.contract.frontier import Frontier
from tests.workflow.conftest import Checkout

STUDY = """
platforms: [cpu-x2]
configs: [ddp]
arms: [matched]
repeats: 1
model: {name: tiny}
data: {sequence_length: 32, micro_batch: 1}
protocol: {preset: quick}
frontier: {over: micro_batch, limit: 2}
"""
PLACE = "frontier/cpu-x2/ddp/matched/micro_batch"


def test_without_frontiers_the_error_says_how(checkout: Checkout) -> None:
    assert "asks for no frontier; add for example frontier: {over: micro_batch}" in checkout.run("frontier", ok=False)


def test_runs_do_not_wait_for_frontiers(checkout: Checkout) -> None:
    checkout.write_study(STUDY)
    assert len(checkout.preview()) == 1
    assert checkout.preview("frontier") == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_frontier_is_searched_once_as_planned(checkout: Checkout) -> None:
    checkout.write_study(STUDY)
    checkout.run("frontier")
    found = decode_file(Frontier, checkout.results / PLACE / "frontier.json")
    assert (found.largest_fit, found.smallest_fail, found.ended) == (2, None, "limit")
    with open(checkout.results / "frontier.csv", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["platform"], row["config"], row["over"], row["largest_fit"]) == ("cpu-x2", "ddp", "micro_batch", "2")
    written = (checkout.results / PLACE / "frontier.json").stat().st_mtime_ns
    assert "probing" not in checkout.run("frontier")
    assert (checkout.results / PLACE / "frontier.json").stat().st_mtime_ns == written

    checkout.run("plan")
    plan = checkout.results / "frontier-plan.json"
    done = subprocess.run(
        [sys.executable, "-m", "harness", "frontier", str(plan), str(checkout.results)],
        cwd=checkout.folder,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "already finished" in done.stdout, "the plan names the very probes that the target ran"
    assert decode_file(Frontier, checkout.results / PLACE / "frontier.json") == found
