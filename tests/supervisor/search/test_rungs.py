"""Rungs of all ranks as one, from the files that a probe leaves behind."""

import json
from pathlib import Path
from typing import Any

from harness.contract.frontier import Rung
from harness.contract.heartbeat import HeartbeatWriter
from harness.contract.outcome import Diagnosis, Evidence
from harness.supervisor.collect import measured_ladder, read_rungs
from tests.engines.specs import make_spec

SPEC = make_spec("fsdp2-reshard", protocol__ladder=[2, 4, 8, 16])
TEXT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 11.50 GiB. GPU 1 has 39.49 GiB"
OOM = Diagnosis(
    outcome="cuda_oom", confidence="high", culprit_rank=1, evidence=(Evidence(file="rank-1.log", line=7, text=TEXT),)
)


def fitting(size: int, peak: int) -> dict[str, Any]:
    return {"size": size, "fits": True, "peak_allocated_bytes": peak, "peak_reserved_bytes": None, "step_time_s": 0.5}


def leave(place: Path, rank: int, rungs: list[dict[str, Any]], trying: int | None, phase: str = "backward") -> None:
    report = {"over": "micro_batch", "rungs": rungs, "trying": trying}
    (place / f"frontier-{rank}.json").write_text(json.dumps(report))
    HeartbeatWriter(place, rank).beat(2 * len(rungs), phase)


def test_a_size_must_fit_on_every_rank(tmp_path: Path) -> None:
    leave(tmp_path, 0, [fitting(2, 10), fitting(4, 30)], 8, "forward")
    leave(tmp_path, 1, [fitting(2, 20)], 4)
    first, second = read_rungs(tmp_path, SPEC, OOM)
    assert (first.size, first.fits, first.peak_allocated_bytes) == (2, True, 20)
    assert (second.size, second.fits, second.outcome) == (4, False, "cuda_oom")
    assert (second.rank, second.phase, second.asked_bytes) == (1, "backward", int(11.5 * 2**30))


def test_an_unbuilt_model_fails_at_the_first_size(tmp_path: Path) -> None:
    HeartbeatWriter(tmp_path, 1).beat(-1, "init")
    (only,) = read_rungs(tmp_path, SPEC, OOM)
    assert (only.size, only.fits, only.phase) == (2, False, "init")


def test_another_death_leaves_the_size_open(tmp_path: Path) -> None:
    for rank in (0, 1):
        leave(tmp_path, rank, [fitting(2, 10)], 4)
    rungs = read_rungs(tmp_path, SPEC, Diagnosis(outcome="segfault", confidence="high", culprit_rank=0))
    assert [(r.size, r.fits) for r in rungs] == [(2, True), (4, None)]
    assert rungs[1] == Rung(size=4, fits=None, outcome="segfault", rank=0, phase="backward")


def test_a_whole_ladder_has_no_end(tmp_path: Path) -> None:
    for rank in (0, 1):
        leave(tmp_path, rank, [fitting(size, size) for size in (2, 4, 8, 16)], None, "done")
    rungs = read_rungs(tmp_path, SPEC, Diagnosis(outcome="ok", confidence="high"))
    assert [(r.size, r.fits) for r in rungs] == [(2, True), (4, True), (8, True), (16, True)]


def test_a_probe_has_rungs_and_no_speed() -> None:
    rung = Rung(size=2, fits=True, step_time_s=0.5)
    measured = measured_ladder([], [rung])
    assert measured.frontier == (rung,)
    assert measured.tokens_per_s is None
    assert measured.step_time_s is None
