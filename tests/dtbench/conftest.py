"""A study on disk, and records made for its runs, without training anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dtbench.study.matrix import Matrix, load_matrix

from harness.contract.measured import Measured, Memory, State
from harness.contract.outcome import Diagnosis, Evidence
from harness.contract.record import RECORD_VERSION, Record, Try
from harness.contract.spec import RunSpec

ROOT = Path(__file__).resolve().parents[2]

GPU_STUDY = """
platforms: [h200-x2]
configs: [ddp, fsdp2-reshard, zero-3]
arms: [matched]
repeats: 3
protocol: {preset: published}
"""


@pytest.fixture
def study(tmp_path: Path) -> Callable[[str], Matrix]:
    """Write a study's text to a file outside the repository and load it."""

    def load(text: str) -> Matrix:
        path = tmp_path / "study.yaml"
        path.write_text(text, encoding="utf-8")
        return load_matrix(str(path), ROOT)

    return load


def make_record(
    spec: RunSpec,
    *,
    tokens_per_s: float | None = 1000.0,
    outcome: str = "ok",
    peak_bytes: int | None = 20_000_000_000,
    loss: tuple[float, ...] = (8.0, 7.9),
    remedy: str | None = None,
    evidence: str = "what the log said",
    profile: dict[str, Any] | None = None,
    gpu_busy_s: float | None = None,
    energy_j: float | None = None,
) -> Record:
    """A record as the supervisor would have written it."""
    diagnosis = Diagnosis(
        outcome=outcome,
        confidence="high",
        culprit_rank=None if outcome == "ok" else 1,
        evidence=() if outcome == "ok" else (Evidence(file="rank-1.log", line=7, text=evidence),),
        sentence="" if outcome == "ok" else f"It ended as {outcome}.",
    )
    died = Diagnosis(outcome="cuda_oom_fragmentation", confidence="high")
    tries = [_try(1, died, None), _try(2, diagnosis, remedy)] if remedy else [_try(1, diagnosis, None)]
    measured = None
    if outcome == "ok" and tokens_per_s is not None:
        measured = Measured(
            step_time_s=spec.tokens_per_step / tokens_per_s,
            tokens_per_step=spec.tokens_per_step,
            tokens_per_s=tokens_per_s,
            loss=list(loss),
            memory=Memory(peak_allocated_bytes=peak_bytes, host_rss_peak_bytes=peak_bytes),
            state=State(
                parameter_bytes=4, gradient_bytes=4, optimizer_bytes=8, host_bytes=0,
                bytes_per_parameter=8.0, expected_bytes_per_parameter=8.0,
            ),
            profile=profile,
            gpu_busy_s=gpu_busy_s,
            energy_j=energy_j,
        )  # fmt: skip
    return Record(
        record_version=RECORD_VERSION, source=None, spec=spec, spec_hash=spec.hash(), outcome=outcome,
        diagnosis=diagnosis, started_at="2026-01-01T00:00:00+00:00", ended_at="2026-01-01T00:01:00+00:00",
        wall_s=60.0, tries=tuple(tries), measured=measured, resolved=None, environment=None, files=(),
    )  # fmt: skip


def _try(index: int, diagnosis: Diagnosis, remedy: str | None) -> Try:
    return Try(
        index=index, remedy=remedy, environment={}, diagnosis=diagnosis, exits=(), launcher_exit_code=0,
        wall_s=60.0, last_step=3,
    )  # fmt: skip


def write_record(results: Path, record: Record) -> Path:
    """Lay a record where the workflow would look for it."""
    path = results / record.spec.path() / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record.to_json()), encoding="utf-8")
    return path


def run_of(matrix: Matrix, config: str, repeat: int = 1, **where: str) -> RunSpec:
    """The one run of a study with that config and repeat."""
    (found,) = [
        run
        for run in matrix.runs
        if (run.identity.config, run.identity.repeat) == (config, repeat)
        and where.get("platform", run.platform.name) == run.platform.name
        and where.get("arm", run.identity.arm) == run.identity.arm
    ]
    return found
