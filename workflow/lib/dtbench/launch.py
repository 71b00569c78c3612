"""Start the supervisor in this very process, so that it never outlives the Snakemake that asked for it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.process import die_with_parent


def become_supervisor(spec: Mapping[str, Any], record: str, log: str) -> NoReturn:
    """Replace this process by `python -m harness run`; what it says goes to the terminal and to `<attempt>.log`.

    `log`, the rule's, is made a link to that file: see `_link`.
    """
    _become("run", spec, Path(record).parent, [], log)


def become_search(spec: Mapping[str, Any], result: str, options: Sequence[str], log: str) -> NoReturn:
    """The same for `python -m harness frontier`, which runs supervisors one after the other in this process."""
    _become("frontier", spec, Path(result).parent, options, log)


def _become(command: str, spec: Mapping[str, Any], out: Path, options: Sequence[str], log: str) -> NoReturn:
    # SIGKILL, since a supervisor that is asked to stop would write a record. The parent is Snakemake itself: bash, from
    # 5.1 on, replaces itself by the last command it is given.
    die_with_parent(os.getppid())
    words = out.with_name(f"{out.name}.log")
    _link(Path(log), words)
    _tee(words)
    # A file without a name: nothing to clean up, and nothing inside the folder that the supervisor owns.
    descriptor = os.memfd_create("spec.json", 0)
    os.write(descriptor, json.dumps(spec).encode())
    arguments = [command, f"/proc/self/fd/{descriptor}", str(out), *options]
    os.execv(sys.executable, [sys.executable, "-m", "harness", *arguments])


def _link(log: Path, words: Path) -> None:
    """Let Snakemake's log of a job be a link to the words of the run.

    Snakemake removes a job's log before it starts the job. A second client that comes to wait for a run, or to find it
    finished, would take away what the run has said so far; like this it takes the link, and makes it anew.
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
