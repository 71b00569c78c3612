"""`snakemake --profile slurm` on a real Slurm of one node: submitted, run, collected, and not run again."""

import json
import re
import subprocess
import sys
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


def snakemake(study: Path, results: Path) -> str:
    command = [sys.executable, "-m", "snakemake", "--profile", "slurm"]
    done = subprocess.run(
        [*command, "--config", f"study={study}", f"results={results}"],
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
    records = [json.loads(p.read_text()) for p in sorted((tmp_path / "results").rglob("record.json"))]
    assert [(r["spec"]["identity"]["config"], r["outcome"]) for r in records] == [("ddp", "ok"), ("zero-2", "ok")]
    assert "| zero-2 |" in (tmp_path / "results/small/report.md").read_text(encoding="utf-8")
    assert "Nothing to be done" in second
    assert re.findall(r"JobId=\d+", again) == re.findall(r"JobId=\d+", jobs)
