"""The worker as launchers start it: arguments, files left behind, exit codes."""

import json
from pathlib import Path

import pytest

from harness.contract.codec import decode_file, encode
from harness.contract.heartbeat import read_heartbeat
from harness.contract.measured import RankResult
from harness.worker import PARITY_EXIT
from tests.engines.conftest import STEPS, torchrun
from tests.engines.specs import SMALL, make_spec

pytestmark = pytest.mark.timeout(600)


def test_a_run_leaves_result_heartbeat_and_parity(tmp_path: Path) -> None:
    spec = make_spec("zero-3", model__config=SMALL, **STEPS, protocol__preflight=True)
    (tmp_path / "spec.json").write_text(json.dumps(encode(spec)))
    # The deepspeed launcher adds --local_rank=N, which must not be refused.
    arguments = ("--spec", str(tmp_path / "spec.json"), "--out", str(tmp_path), "--local_rank=0")
    finished = torchrun("-m", "harness.worker", *arguments)
    assert finished.returncode == 0, finished.stderr[-3000:]
    for rank in range(2):
        result = decode_file(RankResult, tmp_path / f"result-{rank}.json")
        assert (result.rank, result.world_size) == (rank, 2)
        assert {"import", "build", "warmup"} <= result.startup_s.keys()
        assert result.preflight is not None and result.preflight["all_reduce"]["bus_bytes_per_s"] > 0
        assert 0 < result.preflight["dispatch"]["s_per_call"] < 1e-3
        assert result.resolved["config"]["zero_optimization"]["stage"] == 3
        heartbeat = read_heartbeat(tmp_path / f"heartbeat-{rank}.json")
        assert heartbeat is not None and heartbeat.phase == "done"
        assert json.loads((tmp_path / f"parity-{rank}.json").read_text())["mismatches"] == []


def test_a_loss_off_its_reference_stops_the_run(tmp_path: Path) -> None:
    spec = make_spec("ddp", model__config=SMALL, **STEPS, protocol__reference_loss=[1.0, 1.0])
    (tmp_path / "spec.json").write_text(json.dumps(encode(spec)))
    finished = torchrun("-m", "harness.worker", "--spec", str(tmp_path / "spec.json"), "--out", str(tmp_path))
    assert finished.returncode != 0
    assert f"exitcode  : {PARITY_EXIT}" in finished.stderr
    assert "PARITY MISMATCH: loss of step 0: promised 1 within" in finished.stdout
    assert not list(tmp_path.glob("result-*.json"))
    mismatches = json.loads((tmp_path / "parity-0.json").read_text())["mismatches"]
    assert [m["what"] for m in mismatches] == ["loss of step 0", "loss of step 1"]
