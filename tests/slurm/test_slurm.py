"""`snakemake --profile slurm` on a real Slurm: submitted, run over its nodes, adopted, collected, and not run again."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.lab import ask, lab, why_not

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
STUDY = """
platforms: [cpu-x2]
configs: [ddp, zero-2]
arms: [matched]
repeats: 1
model: {name: tiny}
data: {sequence_length: 32, micro_batch: 1}
protocol: {preset: quick, warmup_steps: 1, timed_steps: 2, telemetry_hz: 0}
"""


TWO_NODES = STUDY.replace(
    "[cpu-x2]",
    "[{name: cpu-x2-n2, device: cpu, world_size: 2, nodes: 2, accelerator: cpu, interconnect: ethernet}]",
).replace("zero-2", "fsdp2-reshard")


def command(study: Path, results: Path) -> list[str]:
    polls = ["--slurm-adopt-init-seconds-before-status-checks", "3"]
    config = ["--config", f"study={study}", f"results={results}"]
    return [sys.executable, "-m", "snakemake", "--profile", "slurm", *polls, *config]


def snakemake(study: Path, results: Path) -> str:
    done = subprocess.run(
        command(study, results),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_a_study_runs_once_as_slurm_jobs(tmp_path: Path) -> None:
    study = tmp_path / "small.yaml"
    study.write_text(STUDY, encoding="utf-8")
    # Two cores: the two runs of two ranks come one after the other, so that neither spoils the other's times.
    with lab(tmp_path, cpus=2):
        first = snakemake(study, tmp_path / "results")
        jobs = ask("scontrol", "show", "job")
        second = snakemake(study, tmp_path / "results")
        again = ask("scontrol", "show", "job")
    assert len(re.findall(r"submitted with SLURM jobid \d+", first)) == 2
    assert re.findall(r"JobState=(\w+)", jobs) == ["COMPLETED", "COMPLETED"]
    assert re.findall(r"CPUs/Task=(\d+)", jobs) == ["2", "2"], "one core a rank"
    assert outcomes(tmp_path / "results") == [("ddp", "ok"), ("zero-2", "ok")]
    assert "| zero-2 |" in (tmp_path / "results/small/report.md").read_text(encoding="utf-8")
    assert "Nothing to be done" in second
    assert re.findall(r"JobId=\d+", again) == re.findall(r"JobId=\d+", jobs)


def until(done: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end_s, f"not within 120 s: {what}"
        time.sleep(0.5)


def outcomes(results: Path) -> list[tuple[str, str]]:
    records = [json.loads(p.read_text()) for p in sorted(results.rglob("record.json"))]
    return [(r["spec"]["identity"]["config"], r["outcome"]) for r in records]


def test_a_second_client_adopts_jobs_over_two_nodes(tmp_path: Path) -> None:
    study, results = tmp_path / "two.yaml", tmp_path / "results"
    study.write_text(TWO_NODES, encoding="utf-8")
    with lab(tmp_path, cpus=1, nodes=2):
        first = subprocess.Popen(command(study, results), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
        until(lambda: len(ask("squeue", "--noheader", "--format=%i").split()) == 2, "two jobs in the queue")
        until(lambda: "R" in ask("squeue", "--noheader", "--format=%t").split(), "a running job")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        second = snakemake(study, results)
        jobs = ask("scontrol", "show", "job")
    assert len(re.findall(r"adopts SLURM jobid \d+", second)) == 2, second
    assert re.findall(r"JobState=(\w+)", jobs) == ["COMPLETED", "COMPLETED"], "each run was submitted once"
    assert re.findall(r"NumNodes=(\d+)", jobs) == ["2", "2"]
    assert outcomes(results) == [("ddp", "ok"), ("fsdp2-reshard", "ok")]
    assert len(list(results.rglob("try-1/rank-1.log*"))) == 2, "logs of both nodes lie beside the record"


def test_a_requeued_run_starts_again(tmp_path: Path) -> None:
    study, results = tmp_path / "two.yaml", tmp_path / "results"
    study.write_text(TWO_NODES.replace("ddp, ", "").replace("timed_steps: 2", "timed_steps: 60"), encoding="utf-8")
    with lab(tmp_path, cpus=1, nodes=2):
        client = subprocess.Popen(command(study, results), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
        until(lambda: any(results.rglob("heartbeat-1.json")), "a heartbeat of node 1's rank")
        ask("scontrol", "requeue", "1")
        assert client.wait(timeout=600) == 0
        jobs = ask("scontrol", "show", "job")
    assert re.findall(r"Restarts=(\d+)", jobs) == ["1"]
    assert outcomes(results) == [("fsdp2-reshard", "ok")]
