"""A node's place in the run, and the connection between two supervisors.

Messages are JSON objects, one a line. Both sides send a line at least every PING_S, so silence always means a lost
node. A killed process closes its connection, but a cut network does not.
"""

import base64
import json
import os
import queue
import socket
import subprocess
import threading
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.contract.errors import SpecError, show
from harness.contract.spec import RunSpec

PING_S = 2.0
SILENCE_S = 30.0
"""A node that sends nothing for this long counts as lost."""
LONGEST_LINE_BYTES = 4 * 2**20
CHUNK_BYTES = 2**20
LARGEST_FILE_BYTES = 64 * 2**20
"""Only the end of a larger file travels."""
PORTS = range(12000, 15000)
"""Ports below those of the ranks (`launch.PORTS`), because both are in use at the same time."""
RANK_VARIABLES = ("HARNESS_NODE_RANK", "JOB_COMPLETION_INDEX", "SLURM_NODEID", "SLURM_PROCID")
ADDRESS_VARIABLE = "HARNESS_RENDEZVOUS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which node this is, and where node 0 listens."""

    rank: int
    host: str
    port: int


def find_place(spec: RunSpec, rank: int | None, address: str | None, variables: Mapping[str, str]) -> Place | None:
    """This node's place, from the command line or else from the environment; None for a run on one node.

    Raises SpecError when it is not told, or told something that cannot be.
    """
    nodes = spec.platform.nodes
    if nodes == 1:
        return None
    told = next((variables[name] for name in RANK_VARIABLES if variables.get(name)), "") if rank is None else str(rank)
    address = address or variables.get(ADDRESS_VARIABLE) or _first_of_slurm(variables)
    if not told or not address:
        raise SpecError(
            f"platform {spec.platform.name} has {nodes} nodes and this process is not told which one it is: start it "
            f"once a node with --node-rank N and --rendezvous HOST[:PORT] of node 0 (or {RANK_VARIABLES[0]} and "
            f"{ADDRESS_VARIABLE})"
        )
    if not told.isdecimal() or int(told) >= nodes:
        raise SpecError(f"node rank: found {show(told)}, expected 0 to {nodes - 1} on platform {spec.platform.name}")
    host, _, port = address.rpartition(":") if address.rpartition(":")[2].isdecimal() else (address, "", "")
    # Without a port all nodes compute the same one from the spec.
    chosen = int(port) if port else PORTS.start + int(spec.hash()[:8], 16) % len(PORTS)
    if not host or not 0 < chosen < 65536:
        raise SpecError(f"rendezvous: found {show(address)}, expected HOST or HOST:PORT of node 0")
    return Place(rank=int(told), host=host, port=chosen)


def _first_of_slurm(variables: Mapping[str, str]) -> str | None:
    """The first host of a Slurm step, which holds node 0."""
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
    if not nodes:
        return None
    try:
        answer = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(answer.stdout.split()), None)


def ranks_of(spec: RunSpec, node: int) -> range:
    """The ranks that a node runs."""
    each = spec.platform.ranks_per_node
    return range(node * each, (node + 1) * each)


class Link:
    """One connection to another supervisor. A thread reads, a thread sends signs of life."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._lock = connection, threading.Lock()
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._closed = threading.Event()
        self.lost: str | None = None
        """How the connection ended; None while it holds."""
        self.own_address: str = connection.getsockname()[0]
        for work in (self._read, self._ping):
            threading.Thread(target=work, daemon=True).start()

    def send(self, **message: Any) -> None:
        """Send one message; to a lost node it goes nowhere."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._connection.sendall(line)
        except OSError as error:
            self._lose(error)

    def send_file(self, name: str, path: Path) -> None:
        """Send the content of a file that does not grow any more."""
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - LARGEST_FILE_BYTES))
            chunk = file.read(CHUNK_BYTES)
            # Send empty files too: an empty log shows that the rank was started.
            while True:
                self.send(file=name, data=base64.b64encode(zlib.compress(chunk, 1)).decode())
                chunk = file.read(CHUNK_BYTES)
                if not chunk or self.lost is not None:
                    break

    def take(self, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """The messages that have arrived; waits at most this long for the first one."""
        found = []
        with suppress(queue.Empty):
            found.append(self._messages.get(timeout=timeout_s) if timeout_s > 0 else self._messages.get_nowait())
            while True:
                found.append(self._messages.get_nowait())
        return found

    def close(self) -> None:
        """End the connection; what was sent still arrives."""
        self._closed.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _lose(self, error: OSError | None) -> None:
        if self.lost is None:
            silent = isinstance(error, TimeoutError)
            self.lost = f"said nothing for {SILENCE_S:.0f} s" if silent else "closed its connection without a word"
        self._closed.set()

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                while line := lines.readline(LONGEST_LINE_BYTES):
                    message = json.loads(line)
                    if message:
                        self._messages.put(dict(message))
            self._lose(None)
        except OSError as error:
            self._lose(error)
        except (ValueError, TypeError):
            self._lose(None)

    def _ping(self) -> None:
        while not self._closed.wait(PING_S):
            self.send()


def unpack(data: str) -> bytes:
    """The bytes of one part of a file."""
    return zlib.decompress(base64.b64decode(data))


def network_variables(address: str) -> dict[str, str]:
    """Make gloo use the interface that leads to the other nodes. By default it uses the interface of the host's name.

    A variable that the user has set stays. NCCL finds its interfaces itself.
    """
    names = [name for name, known in psutil.net_if_addrs().items() if any(a.address == address for a in known)]
    return {} if "GLOO_SOCKET_IFNAME" in os.environ or not names else {"GLOO_SOCKET_IFNAME": names[0]}
