"""Scenario 6: hundreds of Jobs: how many calls and how much memory. What a poll costs: benchmarks/gke_calls.py."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.lab.client import light_study

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("runs", "nodes"), [(500, 1), (200, 2)])
def test_calls_do_not_grow_with_jobs(runs, nodes, clone, kube, bucket, record_property):
    clone.platform("lab-many", {**clone.entry(), "world_size": nodes, "nodes": nodes})
    clone.write_study("lab", light_study(repeats=runs, platforms=["lab-many"]))
    client = clone.start("--until", "run", "--config", "study=lab", "--verbose", SNAKEMAKE_GKE_STATUS_INTERVAL="10")
    clone.wait_until_said(f"gke: waiting: {runs} runs .*", 600)
    assert len(kube.jobs()) == runs
    assert {job["spec"]["completions"] for job in kube.jobs()} == {nodes}
    before = sum(bucket.requests.values())
    time.sleep(20)
    lists = sum(bucket.requests.values()) - before
    peak_mb = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{client.pid}/status").read_text()).group(1)) / 1000
    client.send_signal(signal.SIGINT)
    client.wait(20)
    calls = json.loads(re.search(r"gke: calls: (\{.*\})", clone.said()).group(1))
    figures = {"peak_mb": peak_mb, "calls": calls}
    record_property("figures", figures)
    print(figures)
    assert calls["create job"] == runs
    assert 0 < lists <= 21, "one LIST of the bucket a poll, whatever the number of Jobs"
    assert abs(calls["list jobs"] - calls["bucket list"]) <= 1
    assert peak_mb < 300
