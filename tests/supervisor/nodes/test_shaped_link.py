"""A slow link between two nodes slows the configs that send most, as much as the projection says."""

import os
import statistics
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from harness.contract.engines.traffic import crossing
from harness.contract.measured import Measured
from harness.measure.ledger import messages
from tests.supervisor.nodes.lab import namespaces, pair

__all__ = ["namespaces", "pair"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
RATE_BITS_PER_S = 20_000_000
"""Slow enough that a step is mostly spent on the link."""
CONFIGS = ("fsdp2-reshard", "fsdp2-noreshard", "fsdp2-hsdp")
LARGEST_ERROR = 0.15
"""Of the projection, from one node's step and the rate of the link that the preflight measured."""


@pytest.fixture
def slow_link(namespaces: tuple[str, str]) -> Iterator[None]:
    """Both ends send at most RATE_BITS_PER_S."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs a core for each node")
    shape = ["dev", "veth0", "root", "tbf", "rate", f"{RATE_BITS_PER_S}bit", "burst", "32kb", "latency", "400ms"]
    for name in namespaces:
        done = subprocess.run(["tc", "-n", name, "qdisc", "add", *shape], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"this kernel cannot shape a link: {done.stderr}")
    yield
    for name in namespaces:
        subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "veth0", "root"], check=True)


def _measured(pair: Any, config: str, nodes: int, **changes: Any) -> Measured:
    """A run of two ranks a node, each node on a core of its own."""
    changes |= {"platform__world_size": 2 * nodes, "platform__nodes": nodes, "protocol__parity_steps": 0}
    made = pair(config, folder=f"{config}-{nodes}", protocol__warmup_steps=2, protocol__timed_steps=5, **changes)
    running = [node.begin(core=rank) for rank, node in enumerate(made[:nodes])]
    assert [node.wait(400) for node in running] == [0] * nodes, running[0].stdout + running[0].stderr
    measured = running[0].record.measured
    assert measured is not None, running[0].record.diagnosis
    return measured


def _step_s(measured: Measured) -> float:
    return statistics.median(measured.step_times_s)


def test_a_slow_link_costs_what_crosses_it(pair: Any, slow_link: None) -> None:
    link = _measured(pair, "ddp", 2, protocol__preflight=True).preflight or {}
    between = link["all_reduce"]["bus_bytes_per_s"]
    assert between == pytest.approx(RATE_BITS_PER_S / 8, rel=0.15)
    assert min(link["bus_bytes_per_s_by_node"]) > 5 * between, "ranks of one node do not share the slow link"
    assert len(link["bus_bytes_per_s_by_node"]) == 2
    projected, measured = {}, {}
    for config in CONFIGS:
        alone_s = _step_s(_measured(pair, config, 1))
        spec = pair(config, folder=f"{config}-spec", platform__world_size=4)[0].spec
        sent = crossing(messages(spec) or (), nodes=2, ranks_per_node=2, backend="gloo")
        projected[config] = alone_s + sent.seconds(between, 0.0)
        measured[config] = _step_s(_measured(pair, config, 2))
    reshard_s, noreshard_s, hsdp_s = (measured[config] for config in CONFIGS)
    assert reshard_s > 1.05 * noreshard_s, measured
    assert hsdp_s < 0.8 * noreshard_s, measured
    for config in CONFIGS:
        assert abs(projected[config] / measured[config] - 1) < LARGEST_ERROR, (config, projected, measured)
