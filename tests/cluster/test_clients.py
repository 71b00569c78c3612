"""Scenario 2: clients that die, leave, start over and meet each other: nothing lost, nothing done twice."""

import contextlib
import fcntl
import os
import pty
import random
import re
import signal
import subprocess
import sys
import termios
import time

import pytest

from harness.contract.codec import encode
from tests.cluster.lab.client import check_files, light_study
from tests.cluster.lab.process import until

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")


def outcomes(clone):
    return sorted(r.outcome for r in clone.records("lab").values())


def test_a_fresh_clone_collects_what_another_has_run(clone, new_clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study(repeats=2))
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    pods = {p["metadata"]["uid"] for p in kube.pods()}
    other = new_clone()
    other.write_study("lab", light_study(repeats=2))
    assert other.run(*ONLY_RUNS) == 0, other.said()
    assert {p["metadata"]["uid"] for p in kube.pods()} == pods
    assert encode(other.records("lab")) == encode(clone.records("lab"))
    check_files(other, "lab")


def test_two_clients_at_once_make_each_job_once(new_clone, kube, add_node):
    add_node()
    clones = [new_clone(), new_clone()]
    for clone in clones:
        clone.write_study("lab", light_study(repeats=4))
    processes = [clone.start(*ONLY_RUNS) for clone in clones]
    assert [p.wait(240) for p in processes] == [0, 0], clones[0].said() + clones[1].said()
    assert len(kube.jobs()) == 4
    assert len(kube.pods()) == 4
    for clone in clones:
        assert outcomes(clone) == ["deadline"] * 4
        check_files(clone, "lab")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_a_signal_detaches_within_two_seconds(number, clone, kube, add_node):
    clone.write_study("lab", light_study(repeats=2))
    client = clone.start(*ONLY_RUNS, SNAKEMAKE_GKE_POLL_INTERVAL="30")
    clone.wait_until_said("gke: waiting: .*since")
    sent_s = time.monotonic()
    client.send_signal(number)
    client.wait(20)
    assert time.monotonic() - sent_s < 2.0, clone.said()
    assert "detached; 2 Jobs go on" in clone.said()
    before = {j["metadata"]["uid"] for j in kube.jobs()}
    assert len(before) == 2
    add_node()
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert re.search(r"2 runs: 0 Jobs to create, \d to adopt", clone.said())
    assert {j["metadata"]["uid"] for j in kube.jobs()} == before
    assert outcomes(clone) == ["deadline", "deadline"]


def test_a_closed_terminal_leaves_the_jobs(clone, kube, add_node):
    clone.write_study("lab", light_study(repeats=2))
    terminal, inner = pty.openpty()
    client = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--profile", "gke", *ONLY_RUNS],
        stdin=inner, stdout=inner, stderr=inner, cwd=clone.folder, env=os.environ | clone.environment,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(inner)
    said = b""
    while b"gke: waiting: " not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    client.wait(20)
    assert len(kube.jobs()) == 2
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said("2 runs: 0 Jobs to create, 2 to adopt")
    add_node()
    assert client.wait(240) == 0, clone.said()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_costs_only_time(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study(repeats=2))
    results = clone.folder / "results"
    results.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", results], check=True)
    try:
        (results / "filler").write_bytes(bytes(220 * 1024))
        client = clone.start(*ONLY_RUNS)
        clone.wait_until_said("gke: .*No space left on device.*every Job is kept", 120)
        assert client.poll() is None
        (results / "filler").unlink()
        assert client.wait(120) == 0, clone.said()
        assert [r.outcome for r in clone.records("lab").values()] == ["deadline"] * 2
        check_files(clone, "lab")
        assert clone.parts() == []
    finally:
        subprocess.run(["umount", "-l", results], check=True)


def test_cancel_on_exit_deletes_the_unfinished_jobs(clone, kube):
    clone.write_study("lab", light_study(repeats=3))
    client = clone.start(*ONLY_RUNS, "--gke-on-exit", "cancel")
    clone.wait_until_said("gke: waiting: ")
    assert len(kube.jobs()) == 3
    client.send_signal(signal.SIGINT)
    client.wait(20)
    until(lambda: not kube.jobs(), 20, "the Jobs to be deleted")


def test_a_later_client_collects_after_immediate_submit(clone, kube, bucket, add_node):
    clone.write_study("lab", light_study(repeats=2))
    assert clone.run("--immediate-submit", "--notemp", *ONLY_RUNS, timeout_s=60) == 0, clone.said()
    assert len(kube.jobs()) == 2
    assert clone.records("lab") == {}
    add_node()
    until(lambda: len(bucket.records()) == 2, 120, "both records")
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert "0 Jobs to create, 0 to adopt, 2 results to collect" in clone.said()
    assert outcomes(clone) == ["deadline", "deadline"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_random_kills_lose_and_repeat_nothing(clone, kube, bucket, add_node):
    add_node("a")
    add_node("b")
    runs, kills = 20, 50
    clone.write_study("lab", light_study(repeats=runs, seconds=8))
    started_s = time.monotonic()
    first = clone.start(*ONLY_RUNS)
    clone.wait_until_said(f"{runs} runs: ")
    first.kill()
    # So long a client takes to its first look at the cluster; it is killed before, at it, or well after.
    ready_s = time.monotonic() - started_s
    moments = random.Random(6)
    seen: dict[str, set[str]] = {"jobs": set(), "pods": set()}
    for _ in range(kills):
        client = clone.start(*ONLY_RUNS)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that finds everything done ends by itself
            client.wait(moments.uniform(0.5 * ready_s, 2.0 * ready_s))
        client.kill()
        client.wait()
        seen["jobs"] |= {j["metadata"]["uid"] for j in kube.jobs()}
        seen["pods"] |= {p["metadata"]["uid"] for p in kube.pods()}
        check_files(clone, "lab")
    assert clone.said().count(" Jobs to create") > kills / 5, "most clients died before they did anything"
    assert clone.run(*ONLY_RUNS, timeout_s=400) == 0, clone.said()
    seen["jobs"] |= {j["metadata"]["uid"] for j in kube.jobs()}
    seen["pods"] |= {p["metadata"]["uid"] for p in kube.pods()}
    assert {k: len(v) for k, v in seen.items()} == {"jobs": runs, "pods": runs}
    assert len(bucket.records()) == runs
    assert outcomes(clone) == ["deadline"] * runs
    check_files(clone, "lab")
    assert clone.parts() == []
