"""The whole pipeline on real engines: two CPU ranks train, and a report says so."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.contract.record import read_record
from tests.workflow.conftest import Checkout, make_checkout

pytestmark = pytest.mark.timeout(900)  # real training, on machines that may be busy

OFFLINE = Path(__file__).parent / "offline"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One study of two real runs, reported."""
    checkout = make_checkout(tmp_path_factory.mktemp("finished"), repeats=1)
    text = checkout.run()
    assert "Report: results/small/report.md" in text
    return checkout


def test_real_records_with_real_numbers(finished: Checkout) -> None:
    for run in finished.matrix.runs:
        folder = finished.results / run.path()
        record = read_record(folder / "record.json")
        assert record.outcome == "ok"
        assert record.spec == run
        assert record.measured is not None
        assert record.measured.tokens_per_s
        assert len(record.measured.loss) == run.total_steps
        assert json.loads((folder / "spec.json").read_text()) == run.to_json()
        assert (folder.parent / f"{folder.name}.log").read_text().strip()


def test_the_report_shows_them(finished: Checkout) -> None:
    report = (finished.results / "report.md").read_text()
    # A busy machine makes a run's steps uneven, which its row then says.
    assert len(re.findall(r"\| 1/1 \| ok( \[unstable\])? \|", report)) == 2
    assert "| ddp |" in report
    assert "state B/param" in report
    for name in ("report.html", "runs.csv", "cells.csv", "figures/throughput.svg", "figures/memory.svg"):
        assert (finished.results / name).stat().st_size > 100


def test_the_second_call_has_nothing_to_do(finished: Checkout) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.results.rglob("*") if path.is_file()}
    assert "Nothing to be done" in finished.run()
    after = {path: path.stat().st_mtime_ns for path in finished.results.rglob("*") if path.is_file()}
    assert before == after


def test_the_report_needs_neither_torch_nor_network(finished: Checkout) -> None:
    (finished.results / "report.md").unlink()
    offline = Checkout(finished.folder, {"PYTHONPATH": str(OFFLINE)})
    offline.run("report")
    assert (finished.results / "report.md").is_file()


def test_a_description_rewrites_the_report_and_launches_nothing(finished: Checkout) -> None:
    path = finished.folder / "config/small.yaml"
    path.write_text(path.read_text() + "description: Another sentence.\n")
    assert finished.preview() == []
    finished.run()
    assert "Another sentence." in (finished.results / "report.md").read_text()


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    """Poll until it holds; a test that waits for nothing fails loudly."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.slow
def test_after_kill_9_the_same_command_finishes(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path, repeats=1)
    client = subprocess.Popen(
        checkout.command(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: any(checkout.results.rglob("heartbeat-*.json")), 300)
    family = psutil.Process(client.pid).children(recursive=True)
    assert len(family) >= 3
    client.send_signal(signal.SIGKILL)
    client.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not [p for p in alive if p.name() != "tee"], "a run outlived the Snakemake that asked for it"
    assert not list(checkout.results.rglob("record.json"))
    assert "Report: results/small/report.md" in checkout.run()
    for run in checkout.matrix.runs:
        assert read_record(checkout.results / run.path() / "record.json").outcome == "ok"


@pytest.mark.slow
def test_a_killed_client_never_costs_a_finished_record(tmp_path: Path) -> None:
    """Killed between the record and Snakemake's note of it: the record is kept, the run is not repeated."""
    checkout = make_checkout(tmp_path, repeats=1)
    first = checkout.matrix.runs[0]
    record = checkout.results / first.path() / "record.json"
    client = subprocess.Popen(
        checkout.command(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    wait_for(record.is_file, 300)
    client.send_signal(signal.SIGKILL)
    client.wait()
    before = record.read_bytes()
    checkout.run()
    assert record.read_bytes() == before


@pytest.mark.slow
def test_rerun_failed_keeps_the_old_attempt(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path, repeats=1)
    ok, failed = checkout.matrix.runs
    checkout.finish(ok)
    old = checkout.finish(failed, outcome="host_oom")
    before = old.read_bytes()
    checkout.run(config=("rerun=failed",))
    new = old.parent.with_name("a2") / "record.json"
    assert read_record(new).outcome == "ok"
    assert read_record(new).spec.identity.attempt == 2
    assert old.read_bytes() == before
    assert checkout.preview() == []
    # The other record's losses are made up: beside the real ones they are a mismatch, which `failed` now asks for too.
    again = checkout.preview(config=("rerun=failed",))
    assert again == [f"{ok.path().rpartition('/')[0]}/a2"]
