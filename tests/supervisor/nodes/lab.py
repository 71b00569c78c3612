"""Two network namespaces joined by a pair of veth: the hosts of a run over two nodes, and ways to spoil their link."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.contract.spec import RunSpec
from tests.engines.specs import make_spec
from tests.supervisor.conftest import Supervisor, until

ADDRESSES = ("10.77.0.1", "10.77.0.2")
TWO_NODES = {"name": "cpu-x2-n2", "device": "cpu", "world_size": 2, "nodes": 2, "accelerator": "cpu"}
LONG = {"protocol__timed_steps": 100_000, "protocol__warmup_steps": 2}
PORT = 14321
FATE_LIMIT_S = 60.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces, joined by one link."""
    names = (f"dtb{os.getpid()}a", f"dtb{os.getpid()}b")
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr}")
        ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Node(Supervisor):
    """The supervisor of one node, in a namespace of its own."""

    def __init__(self, folder: Path, spec: RunSpec, namespace: str, rank: int) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, spec)
        self.spec, self._namespace, self._rank = spec, namespace, rank

    def begin(self, core: int | None = None, **environment: str) -> "Node":
        """Start it, on one core of this machine or on all."""
        where = ["--node-rank", str(self._rank), "--rendezvous", f"{ADDRESSES[0]}:{PORT}"]
        inner = [sys.executable, "-m", "harness", "run"]
        # `ip netns exec` becomes the supervisor, so that its process id is the supervisor's.
        cores = sorted(os.sched_getaffinity(0))
        pin = "" if core is None else f"os.sched_setaffinity(0, {{{cores[core % len(cores)]}}}); "
        script = f"import os, sys; {pin}os.execvp('ip', ['ip', 'netns', 'exec', *sys.argv[1:]])"
        self.start(*where, program=["-c", script, self._namespace, *inner], **environment)
        return self


@pytest.fixture
def pair(namespaces: tuple[str, str], tmp_path: Path) -> Iterator[Callable[..., list["Node"]]]:
    """Make the two nodes of a run; all that they started is gone after the test."""
    made: list[Node] = []

    def make(config: str = "fsdp2-reshard", folder: str = "", **changes: Any) -> list[Node]:
        spec = make_spec(config, platform=TWO_NODES | {"interconnect": "ethernet"}, **changes)
        top = tmp_path / folder
        nodes = [Node(top / f"node-{rank}", spec, name, rank) for rank, name in enumerate(namespaces)]
        made.extend(nodes)
        return nodes

    yield make
    for node in made:
        for process in node.leftovers():
            process.kill()


def both_train(nodes: list[Node]) -> None:
    """Wait until both ranks train."""

    def reached() -> bool:
        beats = [nodes[0].beat(rank) for rank in (0, 1)]
        return all(beat is not None and beat.step >= 3 for beat in beats)

    until(reached, "step 3 on both nodes, as node 0 sees it", 120)
