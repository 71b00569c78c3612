"""Start the supervisor in this very process, so that it never outlives the Snakemake that asked for it."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1


def become_supervisor(spec: Mapping[str, Any], record: str, log: str) -> NoReturn:
    """Replace this process by `python -m harness run`; what it says goes to the terminal and to `log`."""
    _become("run", spec, Path(record).parent, [], log)


def become_search(spec: Mapping[str, Any], result: str, options: Sequence[str], log: str) -> NoReturn:
    """The same for `python -m harness frontier`, which runs supervisors one after the other in this process."""
    _become("frontier", spec, Path(result).parent, options, log)


def _become(command: str, spec: Mapping[str, Any], out: Path, options: Sequence[str], log: str) -> NoReturn:
    _die_with_parent()
    _tee(log)
    # A file without a name: nothing to clean up, and nothing inside the folder that the supervisor owns.
    descriptor = os.memfd_create("spec.json", 0)
    os.write(descriptor, json.dumps(spec).encode())
    words = [command, f"/proc/self/fd/{descriptor}", str(out), *options]
    os.execv(sys.executable, [sys.executable, "-m", "harness", *words])


def _die_with_parent() -> None:
    """Ask for SIGKILL when the parent dies; a supervisor that is asked to stop would write a record instead.

    The parent is Snakemake itself: bash, from 5.1 on, replaces itself by the last command it is given.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _tee(log: str) -> None:
    """Send what this process says to the terminal and to `log`.

    The shell in between leaves tee without a parent: the supervisor ends every child that a run leaves behind.
    """
    reading, writing = os.pipe()
    subprocess.run(["sh", "-c", 'exec 3<&0; tee "$0" <&3 &', log], stdin=reading, check=True)
    os.close(reading)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
