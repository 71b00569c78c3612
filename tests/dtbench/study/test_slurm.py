"""What a Slurm job asks for, how its step is started, and under which name a second client finds it."""

from pathlib import Path

import pytest
from dtbench import slurm
from snakemake_executor_plugin_slurm_adopt import job_name

from tests.dtbench.conftest import make_record, write_record
from tests.engines.specs import make_spec

H100 = {"name": "h100-x16-n2", "device": "cuda", "world_size": 16, "nodes": 2, "accelerator": "h100-80gb"}


def test_a_job_asks_per_node() -> None:
    offer = {"cpus": 96, "memory_gib": 900.0, "slurm_gpu": "h100"}
    spec = make_spec("ddp", platform=H100 | {"interconnect": "nvlink"}, offer=offer)
    assert slurm.slurm_request(spec) == {
        "nodes": 2,
        "tasks": 2,
        "mpi": "srun",
        "gres": "gpu:h100:8",
        "tasks_per_gpu": -1,
        "cpus_per_task": 96,
        "mem_mb": 921_600,
        "runtime": 70,
    }


def test_no_type_asks_for_any_gpu() -> None:
    spec = make_spec("ddp", platform=H100 | {"interconnect": "nvlink", "nodes": 1})
    request = slurm.slurm_request(spec)
    assert (request["gres"], request["mpi"], request["cpus_per_task"]) == ("gpu:16", "", 128)


def test_a_container_goes_before_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert not slurm.needs_step(1)
    monkeypatch.setenv(slurm.STEP_VARIABLE, "apptainer exec --nv 'my image.sif'")
    assert slurm.needs_step(1)
    command = slurm.step_command(1, 8, ["run", "SPEC", "OUT"])
    assert command[-10:-3] == ["apptainer", "exec", "--nv", "my image.sif", "python", "-m", "harness"]
    assert command[0] == "srun"


def test_only_a_preempted_record_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec("ddp")
    for outcome, kept in (("host_oom", True), ("preemption", False)):
        record = write_record(tmp_path / outcome, make_record(spec, outcome=outcome))
        slurm.set_aside_preempted(record)
        assert record.is_file(), "outside a Slurm job nothing starts again"
        monkeypatch.setenv("SLURM_JOB_ID", "1")
        slurm.set_aside_preempted(record)
        monkeypatch.delenv("SLURM_JOB_ID")
        assert record.is_file() is kept
        assert record.with_name(slurm.PREEMPTED).is_file() is not kept


def test_a_study_keeps_its_job_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert job_name("results/quick") == job_name(str(tmp_path / "results/quick"))
    assert job_name("results/quick").startswith("dtbench-quick-")
    assert job_name("results/quick") != job_name("elsewhere/quick")
