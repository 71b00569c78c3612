"""Faults of a run over two nodes whose cause is easily mistaken: clocks that differ, a network that drops packets."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from harness.contract import exitcodes
from tests.supervisor.nodes.lab import FATE_LIMIT_S, LONG, PORT, both_train, namespaces, pair

__all__ = ["namespaces", "pair"]
pytestmark = pytest.mark.slow
LATE_CLOCK = """
import time
real = time.time
time.time = lambda: real() - 300.0
"""


def test_clocks_minutes_apart_do_not_change_the_culprit(pair: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LATE_CLOCK)
    first, second = pair(**LONG)
    first.begin()
    # By its own clock all that happens on node 1 happens before all that happens on node 0.
    second.begin(PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]))
    both_train([first, second])
    os.kill(first.beat(0).pid, signal.SIGKILL)
    assert [first.wait(FATE_LIMIT_S), second.wait(FATE_LIMIT_S)] == [0, 0]
    record = first.record
    exits = record.tries[0].exits
    assert record.diagnosis.culprit_rank == 0, record.diagnosis
    assert abs(exits[0].at_s - exits[1].at_s) < FATE_LIMIT_S, "node 1's time was corrected"


def _drop_all_but(namespace: str, port: int) -> None:
    """Let nothing leave a node but its supervisor's connection, as a firewall with one open port would."""
    commands = (
        "qdisc add dev veth0 root handle 1: htb default 20",
        "class add dev veth0 parent 1: classid 1:10 htb rate 1gbit",
        "class add dev veth0 parent 1: classid 1:20 htb rate 8bit burst 1 cburst 1",
        "qdisc add dev veth0 parent 1:20 pfifo limit 1",
        f"filter add dev veth0 parent 1: protocol ip prio 1 u32 match ip dport {port} 0xffff flowid 1:10",
        "filter add dev veth0 parent 1: protocol arp prio 2 u32 match u32 0 0 flowid 1:10",
    )
    for command in commands:
        done = subprocess.run(["tc", "-n", namespace, *command.split()], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"this kernel cannot drop packets: tc {command}: {done.stderr}")


def test_a_firewall_between_ranks_ends_within_the_bound(pair: Any, namespaces: tuple[str, str]) -> None:
    nodes = pair(protocol__startup_stall_s=20.0, protocol__remedies="off")
    _drop_all_but(namespaces[1], PORT)
    started_s = time.monotonic()
    try:
        for node in nodes:
            node.begin()
        assert nodes[0].wait(180) == exitcodes.RECORD_DELIVERED
        assert nodes[1].wait(60) == exitcodes.RECORD_DELIVERED
    finally:
        subprocess.run(["tc", "-n", namespaces[1], "qdisc", "del", "dev", "veth0", "root"], check=True)
    assert time.monotonic() - started_s < 120
    diagnosis = nodes[0].record.diagnosis
    assert diagnosis.outcome == "rendezvous", diagnosis
    assert "a launcher did not reach node 0's, one of: node 1 (rank 1)" in diagnosis.sentence
