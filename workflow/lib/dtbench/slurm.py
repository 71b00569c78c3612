"""Slurm: what a job asks for, and the one step over its nodes that runs the harness."""

import math
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.contract.errors import SpecError
from harness.contract.record import read_record
from harness.contract.spec import RunSpec

CPUS_PER_RANK = {"cuda": 8, "cpu": 1}
"""Cores per rank where the platform names none: a rank on a GPU has threads to launch, to log and to offload with."""
MEMORY_GIB_PER_RANK = {"cuda": 32, "cpu": 8}
"""Host memory per rank where the platform names none."""
MARGIN_MIN = 10
"""What a job needs beside its run's own deadline: to start Snakemake, to collect logs. The harness ends first."""
STEP_VARIABLE = "DTBENCH_SRUN"
"""Words between srun's own options and the harness: more options (Pyxis), or a command (`apptainer exec ...`)."""
PREEMPTED = "record.json.preempted"
"""New name of a preempted start's record when Slurm starts the job again."""


def slurm_request(spec: RunSpec) -> dict[str, int | str]:
    """What a Slurm job of the spec asks for, by the names of the executor's resources; all but `runtime` are per node.

    `mpi` is empty on one node: the executor would refuse a single task.
    """
    platform, offer = spec.platform, spec.offer
    ranks = platform.ranks_per_node
    memory_gib = offer.memory_gib or ranks * MEMORY_GIB_PER_RANK[platform.device]
    gpu = ":".join(word for word in ("gpu", offer.slurm_gpu, str(ranks)) if word)
    return {
        "nodes": platform.nodes,
        "tasks": platform.nodes,
        "mpi": "srun" if platform.nodes > 1 else "",
        "gres": gpu if platform.device == "cuda" else "",
        # Without it the executor takes `tasks` for tasks per GPU.
        "tasks_per_gpu": -1,
        "cpus_per_task": offer.cpus or ranks * CPUS_PER_RANK[platform.device],
        "mem_mb": int(memory_gib * 1024),
        "runtime": math.ceil(spec.protocol.deadline_s / 60) + MARGIN_MIN,
    }


def step_command(nodes: int, cpus: int, own: Sequence[str]) -> list[str]:
    """The srun of one supervisor a node. Node 0 ends the others, so Slurm must not end node 0 for their exit status."""
    words = shlex.split(os.environ.get(STEP_VARIABLE, ""))
    where = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}"]
    fate = ["--kill-on-bad-exit=0", "--wait=0"]
    # A container has a Python of its own.
    python = "python" if words else sys.executable
    return ["srun", *where, *fate, *words, python, "-m", "harness", *own]


def needs_step(nodes: int) -> bool:
    """Whether a run must be started with srun: if it has several nodes, or if the user named a container or options."""
    return "SLURM_JOB_ID" in os.environ and (nodes > 1 or bool(os.environ.get(STEP_VARIABLE)))


def run_step(command: Sequence[str], spec: int, result: Path) -> int:
    """Run the step and return 0 when it left its result, whatever became of single nodes.

    `spec` is a descriptor of the spec's text. srun copies it to every task's standard input, so that no file has to be
    seen on all nodes.
    """
    # The batch host is the job's first node; inside a container nothing can translate Slurm's list of nodes.
    first = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    variables = {"HARNESS_RENDEZVOUS": first} | os.environ
    os.lseek(spec, 0, os.SEEK_SET)
    code = subprocess.run(command, stdin=spec, env=variables, check=False).returncode
    return 0 if result.is_file() else code or 1


def set_aside_preempted(record: Path) -> None:
    """Rename a record of outcome `preemption`: Slurm has put the job back into its queue and starts it again."""
    if "SLURM_JOB_ID" not in os.environ or not record.is_file():
        return
    try:
        preempted = read_record(record).outcome == "preemption"
    except SpecError:
        return
    if preempted:
        print(f"{record.parent}: preempted before; starting again")
        record.rename(record.with_name(PREEMPTED))
