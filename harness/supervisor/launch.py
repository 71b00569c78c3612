"""How the ranks of one try are started: the launcher's command line and every rank's environment."""

import base64
import json
import os
import random
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.contract.errors import HarnessError, SpecError, nearest
from harness.contract.spec import RunSpec
from harness.measure.host import usable_cores
from harness.supervisor import lean
from harness.supervisor.environment import SOURCE_ROOT
from harness.supervisor.extensions import path_with_environment, plain_architectures, writable_extensions_folder

LEAN = (sys.executable, "-m", "harness.supervisor.lean")
"""Starts the launcher named next, without the imports that it does not use."""
PORTS = range(15000, 30000)
"""Ports below Linux's ephemeral range (from 32768), so that no outgoing connection can take a chosen one."""


def free_port() -> int:
    """A TCP port of this host that nobody listens on now. Raises OSError when none can be found."""
    for port in random.SystemRandom().sample(PORTS, 200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free TCP port found in {PORTS.start}-{PORTS.stop - 1} after 200 tries")


def worker_command(spec_path: Path, folder: Path) -> list[str]:
    """The module and arguments that a launcher runs once per rank, after its own interpreter."""
    worker = [sys.executable, "-u", "-m", "harness.worker", "--spec", str(spec_path), "--out", str(folder)]
    return ["harness.supervisor.rank", str(folder), *worker]


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """The rendezvous of several nodes' launchers for one try."""

    node: int
    host: str
    port: int


def torchrun_on_nodes(devices: list[str], module: list[str], nodes: int, meeting: Meeting) -> list[str]:
    """torchrun of one node of several, for every engine: DeepSpeed's launcher would start the others through ssh.

    The static rendezvous gives node N the ranks from N times the devices of a node.
    """
    where = [f"--nnodes={nodes}", f"--node-rank={meeting.node}", f"--master-addr={meeting.host}"]
    options = [*where, f"--master-port={meeting.port}", f"--nproc-per-node={len(devices)}", "--module"]
    return [*LEAN, lean.TORCHRUN, *options, *module]


def torchrun_command(devices: list[str], module: list[str]) -> list[str]:
    """torchrun on this host, one rank per device; it finds a free port itself."""
    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={len(devices)}", "--module"]
    return [*LEAN, lean.TORCHRUN, *options, *module]


def deepspeed_command(devices: list[str], module: list[str]) -> list[str]:
    """DeepSpeed's per-node launcher, as its `deepspeed` command starts it on one host.

    Calling it directly spares the runner's own import of torch and DeepSpeed; `--local_rank=N` is
    still injected after the module's name. It sets CUDA_VISIBLE_DEVICES to `devices`.
    """
    world = base64.urlsafe_b64encode(json.dumps({"localhost": devices}).encode()).decode()
    options = [f"--world_info={world}", "--master_addr=127.0.0.1", f"--master_port={free_port()}", "--module"]
    return [*LEAN, lean.DEEPSPEED, *options, *module]


LAUNCHERS = {"torchrun": torchrun_command, "deepspeed": deepspeed_command}


def visible_devices(spec: RunSpec, environment: Mapping[str, str]) -> list[str]:
    """Devices of this node's ranks: the first that CUDA_VISIBLE_DEVICES shows (a scheduler's choice), else 0 and up.

    Raises HarnessError when fewer are shown than a node of the platform has ranks.
    """
    ranks = spec.platform.ranks_per_node
    stated = environment.get("CUDA_VISIBLE_DEVICES")
    if stated is None or spec.platform.device == "cpu":
        return [str(index) for index in range(ranks)]
    shown = [name.strip() for name in stated.split(",") if name.strip()]
    if len(shown) < ranks:
        raise HarnessError(
            f"CUDA_VISIBLE_DEVICES: found {stated!r}, expected {ranks} devices for platform {spec.platform.name}"
        )
    return shown[:ranks]


def launcher_command(
    spec: RunSpec, spec_path: Path, folder: Path, environment: Mapping[str, str], meeting: Meeting | None = None
) -> list[str]:
    """The whole command of one try on this node; `meeting` is None on one node.

    Raises SpecError for an unknown launcher, HarnessError for missing devices.
    """
    name = spec.engine.launcher
    if name not in LAUNCHERS:
        raise SpecError(f"engine.launcher: found {name!r}; {nearest(name, tuple(LAUNCHERS))}")
    devices, worker = visible_devices(spec, environment), worker_command(spec_path, folder)
    if meeting is not None:
        return torchrun_on_nodes(devices, worker, spec.platform.nodes, meeting)
    return LAUNCHERS[name](devices, worker)


def rank_environment(spec: RunSpec, folder: Path, remedy: dict[str, str]) -> dict[str, str]:
    """Environment of the launcher and of every rank; later ones win: ambient, ours, the spec's, the remedy's."""
    environment = dict(os.environ)
    path = [str(SOURCE_ROOT), environment.get("PYTHONPATH", "")]
    cores = min(usable_cores(), spec.offer.cpus or usable_cores())
    environment |= plain_architectures() | {
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        # Loading an operator calls ninja, which is not on PATH unless somebody activated the Python environment.
        "PATH": path_with_environment(),
        "TORCH_EXTENSIONS_DIR": str(writable_extensions_folder()),
        "HARNESS_SUPERVISOR_PID": str(os.getpid()),
        # torchrun would set 1, the deepspeed launcher nothing. Both get an equal share of the cores instead.
        "OMP_NUM_THREADS": str(max(1, cores // spec.platform.ranks_per_node)),
        # With this variable DeepSpeed does not search for a GPU and does not warn.
        **({"DS_ACCELERATOR": "cpu"} if spec.platform.device == "cpu" else flight_recorder(folder)),
    }
    return environment | spec.environment | remedy


def flight_recorder(folder: Path) -> dict[str, str]:
    """Settings that make NCCL dump its last collectives into the try's folder, on time-out or on request."""
    prefix = str(folder / "flight-recorder" / "rank_")
    return {
        "TORCH_FR_BUFFER_SIZE": "2000",
        # Older torch accepts requests through the pipe only if the buffer's old variable is set as well.
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": prefix,
    }


def port_was_taken(folder: Path) -> bool:
    """Whether a rank found the chosen rendezvous port in use before the first step."""
    for path in folder.glob("rank-*.log"):
        text = path.read_text(encoding="utf-8", errors="replace")[-20_000:]
        if "EADDRINUSE" in text or ("DistNetworkError" in text and "already in use" in text):
            return True
    return False
