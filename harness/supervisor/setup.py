"""`python -m harness setup`: compile DeepSpeed's operators once, so that no run has to.

DeepSpeed compiles them on first use, into TORCH_EXTENSIONS_DIR. The ranks get the same folder from
`extensions.extensions_folder`, by default inside the environment, which stays self-contained.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.contract import exitcodes
from harness.supervisor.environment import installed_versions
from harness.supervisor.extensions import drop_abandoned_locks, extensions_folder
from harness.supervisor.folder import write_atomically
from harness.supervisor.host import usable_cores
from harness.supervisor.launch import path_with_environment, plain_architectures

STAMP = "built.json"
OPERATORS = {
    "CPUAdamBuilder": "cpu_adam",
    "ShareMemCommBuilder": "deepspeed_shm_comm",
    "FusedAdamBuilder": "fused_adam",
}
"""Builder -> folder of its build: the optimizer of offloaded configs, what gloo ranks on one host share, and the
optimizer that ZeRO ships with on a GPU."""
BUILD = """
import sys
from deepspeed.accelerator import get_accelerator
unused = "ShareMemCommBuilder" if get_accelerator().device_name() == "cuda" else "FusedAdamBuilder"
for name in sys.argv[1:]:
    if name == unused:
        continue
    builder = get_accelerator().create_op_builder(name)
    if builder is not None and hasattr(builder, "sources"):
        builder.load(verbose=True)
"""
"""Runs in a child: the supervisor never imports DeepSpeed, and the accelerator decides which builder fits."""


def setup(verbose: bool) -> int:
    """Build what is missing; returns the exit status."""
    root = extensions_folder()
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root):
        if _is_built(root):
            print(f"DeepSpeed's operators are built: {root}")
            return 0
        drop_abandoned_locks()
        compiler = os.environ.get("CXX", "c++")
        if shutil.which(compiler) is None:
            print(
                f"error: found no {compiler}, which compiles DeepSpeed's CPU optimizer; install g++ or set CXX. "
                "Without it every config runs except zero-3-offload",
                file=sys.stderr,
            )
            return exitcodes.INTERNAL
        return _build(root, verbose)


def _build(root: Path, verbose: bool) -> int:
    for folder in OPERATORS.values():
        # Built for another torch, or left half done with its lock by a build that was killed.
        shutil.rmtree(root / folder, ignore_errors=True)
    started_s, log = time.monotonic(), root / "build.log"
    environment = (
        os.environ
        | plain_architectures()
        | {
            "TORCH_EXTENSIONS_DIR": str(root),
            "PATH": path_with_environment(),
            "MAX_JOBS": str(usable_cores()),
        }
    )
    command = [sys.executable, "-c", BUILD, *OPERATORS]
    print(f"compiling DeepSpeed's operators into {root}", flush=True)
    with open(log, "wb") as output:
        streams = {} if verbose else {"stdout": output, "stderr": subprocess.STDOUT}
        status = subprocess.run(command, env=environment, check=False, **streams).returncode  # type: ignore[call-overload]
    if status != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        print("\n".join([*tail, f"error: the build failed with status {status}; whole log: {log}"]), file=sys.stderr)
        return exitcodes.INTERNAL
    write_atomically(root / STAMP, json.dumps(_fingerprint()) + "\n")
    print(f"built in {time.monotonic() - started_s:.0f} s")
    return 0


def _is_built(root: Path) -> bool:
    try:
        return bool(json.loads((root / STAMP).read_text(encoding="utf-8")) == _fingerprint())
    except (OSError, ValueError):
        return False


def _fingerprint() -> dict[str, str]:
    versions = installed_versions()
    known = {name: versions.get(name, "") for name in ("torch", "deepspeed")}
    return known | {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
