"""DeepSpeed's compiled operators: where they are built, how `python -m harness setup` builds them, and abandoned locks.

DeepSpeed compiles its operators on first use, into TORCH_EXTENSIONS_DIR. `setup` does it once, so that no run has to;
the ranks get the same folder, by default inside the Python environment, which stays self-contained.

PyTorch's loader creates `<operator>/lock` while it builds or loads an operator, keeps it open and removes it at the
end. Other processes wait until the lock is gone. If the process that created it was killed, they wait forever.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness.contract import exitcodes
from harness.contract.files import write_atomically
from harness.measure.host import usable_cores
from harness.supervisor.environment import installed_versions
from harness.supervisor.progress import say

ABANDONED_S = 600
"""A lock of this age that no process of this host holds counts as abandoned. A younger lock may belong to another node
that shares the folder. A build takes minutes, a load milliseconds."""
SETTLE_S = 0.5
"""Time between the moments at which an owner closes and removes its lock. In between, no process holds it."""

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


def extensions_folder() -> Path:
    """Where DeepSpeed's compiled operators are built: inside the environment unless the caller says otherwise."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")


def writable_extensions_folder() -> Path:
    """`extensions_folder`, or a temporary copy where it is read-only: loading an operator writes a lock beside it."""
    built = extensions_folder()
    if not built.exists() or os.access(built, os.W_OK):
        return built
    copy = Path(tempfile.gettempdir()) / f"torch_extensions-{os.getuid()}"
    # Times are kept: ninja compares them to see that nothing needs to be built.
    shutil.copytree(built, copy, dirs_exist_ok=True)
    return copy


def drop_abandoned_locks(since_s: float | None = None) -> None:
    """Remove locks that nobody holds: those that our own ranks made after `since_s` (Unix time), or without it old
    ones."""
    border_s = time.time() - ABANDONED_S
    for lock in writable_extensions_folder().glob("*/lock"):
        with contextlib.suppress(FileNotFoundError):
            made = lock.stat()
            ours = since_s is not None and made.st_mtime >= since_s
            if not (ours or made.st_mtime < border_s) or _is_held(made):
                continue
            time.sleep(SETTLE_S)
            if lock.stat().st_ino == made.st_ino and not _is_held(made):
                lock.unlink()
                say(f"removed {lock}: a process that was killed left it, and loading the operator would wait for ever")


def _is_held(made: os.stat_result) -> bool:
    """Whether a process of this host has the file open. Other users' processes cannot be inspected and do not count."""
    wanted = (made.st_dev, made.st_ino)
    for process in Path("/proc").iterdir():
        # A process may end while we look, and other users' processes refuse access.
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir() if process.name.isdigit() else ():
                with contextlib.suppress(OSError):
                    found = descriptor.stat()
                    if (found.st_dev, found.st_ino) == wanted:
                        return True
    return False


def path_with_environment() -> str:
    """PATH with the programs of this Python environment in front."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def plain_architectures() -> dict[str, str]:
    """TORCH_CUDA_ARCH_LIST without suffixes: DeepSpeed 0.19 cannot parse `9.0a` and fails every CUDA build on it."""
    given = os.environ.get("TORCH_CUDA_ARCH_LIST")
    return {"TORCH_CUDA_ARCH_LIST": re.sub(r"(?<=\d)[af](?=[;\s+]|$)", "", given)} if given else {}


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
        # The folder was built for another torch, or a killed build left it incomplete and locked.
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


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
