"""Each injected fault happens for real on two CPU ranks and is named rightly, with culprit and evidence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.contract.record import read_record
from tests.engines.specs import SMALL, make_spec

ROOT = Path(__file__).resolve().parents[2]
STALL = {"protocol__stall_floor_s": 5.0, "protocol__stall_factor": 3.0}

# shm_full is not here: its reservation takes real memory, and /dev/shm may be larger than what there is.
FAULTS = [
    ("oom", "forward", "host_oom", 1, "DefaultCPUAllocator"),
    ("swallowed_oom", "forward", "collective_wedge", 1, "rank 1: forward of step 3"),
    ("sleep", "forward", "collective_wedge", 1, "rank 1: forward of step 3"),
    ("spin", "backward", "collective_wedge", 1, "rank 1: backward of step 3"),
    ("collective_mismatch", "forward", "collective_wedge", 1, "mismatch"),
    ("sigkill", "forward", "host_oom", 1, "SIGKILL"),
    ("sigterm", "forward", "preemption", 1, "SIGTERM"),
    ("segfault", "forward", "segfault", 1, "Segmentation fault"),
    ("key_error", "forward", "python_exception", 1, "KeyError"),
    ("nan_loss", "backward", "numerics", None, "not finite"),
    ("disk_full", "forward", "disk_full", 1, "No space left"),
    ("port_in_use", "init", "rendezvous", 1, "listen"),
    ("missing_interface", "init", "nccl_init", 1, "absent0"),
    ("missing_module", "load", "import_error", 1, "ModuleNotFoundError"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "phase", "outcome", "culprit", "evidence"), FAULTS, ids=[f[0] for f in FAULTS])
def test_injected_fault(
    kind: str, phase: str, outcome: str, culprit: int | None, evidence: str, tmp_path: Path
) -> None:
    before_first = phase in ("init", "load")
    spec = make_spec(
        "ddp",
        model={"name": "small", "config": SMALL},
        faults=[{"kind": kind, "rank": 1, "step": -1 if before_first else 3, "phase": phase}],
        **(STALL if kind in ("swallowed_oom", "sleep", "spin") else {}),
    )
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_json()))
    command = [sys.executable, "-m", "harness", "run", str(tmp_path / "spec.json"), str(tmp_path / "out")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    record = read_record(tmp_path / "out" / "record.json")
    found = record.diagnosis
    assert (found.outcome, found.culprit_rank) == (outcome, culprit), found
    assert any(evidence in e.text for e in found.evidence), found.evidence
    assert any("FAULTS INJECTED" in note for note in record.notes)
