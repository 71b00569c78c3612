"""What the workflow's scripts do: one library call on the study, or become the harness that trains a run."""

import contextlib
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dtbench import slurm
from dtbench.study.matrix import Matrix, load_matrix
from harness.contract.errors import HarnessError
from harness.process import die_with_parent


def run(snakemake: Any, work: Callable[[Matrix, Path], object]) -> None:
    """Do a rule's work on its study. An error is told in one line; the traceback of a bug goes to the rule's log."""
    # The process makes one pass over the records and keeps everything until its end, so the garbage collector finds
    # nothing.
    gc.disable()
    study = snakemake.params.study
    try:
        work(load_matrix(study["path"], Path(study["root"])), Path(study["results"]))
    except HarnessError as error:
        sys.exit(str(error))
    except Exception as error:
        said, log = f"{type(error).__name__}: {error}", snakemake.log[0]
        try:
            Path(log).write_text(traceback.format_exc(), encoding="utf-8")
        except OSError as refused:
            sys.exit(f"{said}; the traceback could not be kept: {refused}")
        sys.exit(f"{said}; the traceback is in {log}")


def become_harness(
    command: str, spec: Mapping[str, Any], output: str, options: Sequence[str], log: str, cpus: int
) -> NoReturn:
    """Replace this process by `python -m harness COMMAND SPEC FOLDER OPTIONS`, FOLDER being where `output` will lie.

    What it says goes to the terminal and to `<FOLDER>.log`; `log`, the rule's, becomes a link to it: see `_link`.
    Several nodes of Slurm each get one, with `cpus` cores.
    """
    result = Path(output)
    folder = result.parent
    # SIGKILL, since a supervisor that is asked to stop would write a record. The parent is Snakemake itself: bash, from
    # 5.1 on, replaces itself by the last command it is given.
    die_with_parent(os.getppid())
    words = folder.with_name(f"{folder.name}.log")
    _link(Path(log), words)
    _tee(words)
    slurm.set_aside_preempted(result)
    # A file without a name: nothing to clean up, and nothing inside the folder that the supervisor owns.
    descriptor = os.memfd_create("spec.json", 0)
    os.write(descriptor, json.dumps(spec).encode())
    nodes = int(spec["platform"].get("nodes", 1))
    if slurm.needs_step(nodes):
        step = slurm.step_command(nodes, cpus, [command, "/dev/stdin", str(folder), *options])
        sys.exit(slurm.run_step(step, descriptor, result))
    arguments = [command, f"/proc/self/fd/{descriptor}", str(folder), *options]
    os.execv(sys.executable, [sys.executable, "-m", "harness", *arguments])


def _link(log: Path, words: Path) -> None:
    """Make Snakemake's log of a job a link to the run's own log.

    Snakemake removes a job's log before it starts the job. A second client that waits for the run, or finds it
    finished, would delete the log so far. Now it deletes only the link, and creates it again.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        log.symlink_to(os.path.relpath(words, log.parent))


def _tee(log: Path) -> None:
    """Send what this process says to the terminal and to the end of `log`.

    The shell in between leaves tee without a parent: the supervisor ends every child that a run leaves behind.
    """
    reading, writing = os.pipe()
    subprocess.run(["sh", "-c", 'exec 3<&0; tee -a "$0" <&3 &', log], stdin=reading, check=True)
    os.close(reading)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
