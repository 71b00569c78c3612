"""`srun` over two nodes: one supervisor a node, told by Slurm which one it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.contract.record import read_record
from tests.engines.specs import make_spec
from tests.slurm.lab import lab, why_not

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_one_srun_runs_one_spec_over_two_nodes(tmp_path: Path) -> None:
    spec = make_spec("fsdp2-reshard", platform__nodes=2)
    path, out = tmp_path / "spec.json", tmp_path / "out"
    path.write_text(json.dumps(spec.to_json()))
    command = ["srun", "--nodes=2", "--ntasks-per-node=1", "--time=5", sys.executable, "-m", "harness", "run"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    with lab(tmp_path, cpus=2, nodes=2):
        done = subprocess.run(
            [*command, path, out], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(out / "record.json")
    assert record.outcome == "ok", record.diagnosis
    assert [end.exit_code for end in record.tries[0].exits] == [0, 0]
    assert not list(out.glob("node-*")), "both nodes share OUT here"
