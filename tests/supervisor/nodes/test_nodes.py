"""One run over two nodes: two network namespaces joined by a pair of veth, one supervisor in each."""

import json
import os
import signal
import time
from typing import Any

import pytest

from harness.contract import exitcodes
from harness.contract.errors import SpecError
from harness.supervisor.nodes.link import Place, find_place
from tests.engines.specs import make_spec
from tests.supervisor.nodes.lab import FATE_LIMIT_S, LONG, TWO_NODES, both_train, ip, namespaces, pair

__all__ = ["namespaces", "pair"]


def test_two_nodes_leave_one_record_of_all_ranks(pair: Any) -> None:
    nodes = [node.begin() for node in pair()]
    assert [node.wait(120) for node in nodes] == [0, 0], [node.stdout + node.stderr for node in nodes]
    record = nodes[0].record
    assert record.outcome == "ok", record.diagnosis
    assert record.measured is not None
    assert len(record.measured.memory_by_rank) == 2
    assert record.measured.tokens_per_step == 2 * 64
    assert [(e.rank, e.exit_code) for e in record.tries[0].exits] == [(0, 0), (1, 0)]
    names = {file.path for file in record.files}
    assert {"try-1/rank-0.log", "try-1/rank-1.log", "try-1/launcher-node-1.log"} <= names
    assert list(nodes[1].out.iterdir()) == []


@pytest.mark.slow
def test_zero_trains_over_two_nodes(pair: Any) -> None:
    nodes = [node.begin() for node in pair("zero-3", protocol__timed_steps=2)]
    assert [node.wait(180) for node in nodes] == [0, 0], [node.stdout + node.stderr for node in nodes]
    assert nodes[0].record.outcome == "ok", nodes[0].record.diagnosis


@pytest.mark.slow
def test_hsdp_trains_alike_and_shards_inside_a_node(pair: Any) -> None:
    losses, states = {}, {}
    for config in ("fsdp2-hsdp", "fsdp2-reshard"):
        nodes = [node.begin() for node in pair(config, folder=config, platform__world_size=4)]
        assert [node.wait(180) for node in nodes] == [0, 0], [node.stdout + node.stderr for node in nodes]
        measured = nodes[0].record.measured
        assert measured is not None, nodes[0].record.diagnosis
        assert measured.state is not None
        assert measured.parameters is not None
        losses[config] = measured.loss
        state = measured.state.parameter_bytes + measured.state.gradient_bytes + measured.state.optimizer_bytes
        states[config] = state / measured.parameters
    assert losses["fsdp2-hsdp"] == pytest.approx(losses["fsdp2-reshard"], rel=1e-3)
    assert states["fsdp2-hsdp"] == pytest.approx(16 / 2, rel=0.02), "two ranks of a node share one copy"
    assert states["fsdp2-reshard"] == pytest.approx(16 / 4, rel=0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hpz_trains_as_zero_3_does(pair: Any) -> None:
    losses = {}
    # Nothing stays gathered, or backward would have nothing to gather.
    free = {"max_live_parameters": 1, "max_reuse_distance": 0, "prefetch_bucket_size": 1}
    changes = {f"engine__settings__{name}": value for name, value in free.items()} | {"platform__world_size": 4}
    for config in ("zero-3-hpz", "zero-3"):
        nodes = [node.begin() for node in pair(config, folder=config, **changes)]
        assert [node.wait(400) for node in nodes] == [0, 0], [node.stdout + node.stderr for node in nodes]
        measured = nodes[0].record.measured
        assert measured is not None, nodes[0].record.diagnosis
        losses[config] = measured.loss
        resolved = nodes[0].record.resolved
        assert resolved is not None
        assert resolved["found"]["secondary_in_node"] is (config == "zero-3-hpz"), "read from the running engine"
    assert losses["zero-3-hpz"] == pytest.approx(losses["zero-3"], rel=1e-3)


def test_a_killed_node_ends_all_and_is_named(pair: Any) -> None:
    nodes = [node.begin() for node in pair(**LONG)]
    both_train(nodes)
    nodes[1].process.kill()
    killed_s = time.monotonic()
    assert nodes[0].wait(FATE_LIMIT_S) == exitcodes.RECORD_DELIVERED
    assert time.monotonic() - killed_s < FATE_LIMIT_S
    record = nodes[0].record
    assert record.outcome == "network_fault"
    assert record.diagnosis.culprit_rank == 1
    assert "Node 1 (rank 1) closed its connection" in record.diagnosis.sentence
    for node in nodes:
        node.assert_nothing_left()


def test_a_node_that_got_sigterm_is_named(pair: Any) -> None:
    nodes = [node.begin() for node in pair(**LONG)]
    both_train(nodes)
    nodes[1].process.terminate()
    assert nodes[0].wait(FATE_LIMIT_S) == exitcodes.RECORD_DELIVERED
    assert nodes[1].wait(FATE_LIMIT_S) == exitcodes.INTERNAL
    record = nodes[0].record
    assert record.outcome == "user_cancelled"
    assert "Node 1 (rank 1) was told to end" in record.diagnosis.sentence
    assert (nodes[0].out / "try-1" / "rank-1.log").exists(), "its logs came before it left"


def test_a_killed_first_node_ends_the_second(pair: Any) -> None:
    nodes = [node.begin() for node in pair(**LONG)]
    both_train(nodes)
    nodes[0].process.kill()
    assert nodes[1].wait(FATE_LIMIT_S) == exitcodes.INTERNAL
    assert "node 1: node 0 closed its connection" in nodes[1].stderr
    for node in nodes:
        node.assert_nothing_left()


def test_a_dead_rank_of_another_node_is_named(pair: Any) -> None:
    nodes = [node.begin() for node in pair(**LONG)]
    both_train(nodes)
    os.kill(nodes[0].beat(1).pid, signal.SIGKILL)
    assert [node.wait(FATE_LIMIT_S) for node in nodes] == [0, 0]
    record = nodes[0].record
    assert record.outcome != "ok"
    assert record.diagnosis.culprit_rank == 1, record.diagnosis
    assert record.tries[0].exits[1].signal == "SIGKILL"


@pytest.mark.slow
def test_a_cut_link_ends_all_nodes(pair: Any, namespaces: tuple[str, str]) -> None:
    nodes = [node.begin() for node in pair(**LONG)]
    both_train(nodes)
    # Packets vanish and nobody refuses them. (netem could drop them as well, but not every kernel has it.)
    ip("-n", namespaces[1], "link", "set", "veth0", "down")
    try:
        assert nodes[0].wait(90) == exitcodes.RECORD_DELIVERED
        assert nodes[1].wait(90) == exitcodes.INTERNAL
    finally:
        ip("-n", namespaces[1], "link", "set", "veth0", "up")
    record = nodes[0].record
    assert record.outcome == "network_fault"
    assert "Node 1 (rank 1) said nothing for 30 s" in record.diagnosis.sentence


def test_a_node_that_never_comes_is_named(pair: Any) -> None:
    alone = pair(protocol__startup_stall_s=3.0)[0].begin()
    assert alone.wait(60) == exitcodes.RECORD_DELIVERED
    assert alone.record.outcome == "rendezvous"
    assert "had not come to node 0: node 1 (rank 1)" in alone.record.diagnosis.sentence


def test_a_node_of_another_spec_is_refused(pair: Any) -> None:
    first, second = pair(protocol__startup_stall_s=20.0)
    other = make_spec("ddp", platform=TWO_NODES | {"interconnect": "ethernet"})
    second.spec_path.write_text(json.dumps(other.to_json()))
    first.begin()
    assert second.begin().wait(60) == exitcodes.CONFIG
    assert "node 0 runs another spec" in second.stderr


@pytest.mark.parametrize(
    ("rank", "address", "variables", "expected"),
    [
        (1, "a:1234", {}, Place(rank=1, host="a", port=1234)),
        (None, None, {"JOB_COMPLETION_INDEX": "0", "HARNESS_RENDEZVOUS": "b:99"}, Place(rank=0, host="b", port=99)),
        (None, "c:5", {"SLURM_NODEID": "1"}, Place(rank=1, host="c", port=5)),
    ],
)
def test_a_node_finds_its_place(rank: Any, address: Any, variables: dict[str, str], expected: Place) -> None:
    spec = make_spec("ddp", platform=TWO_NODES | {"interconnect": "ethernet"})
    assert find_place(spec, rank, address, variables) == expected


def test_a_node_without_its_place_is_refused() -> None:
    spec = make_spec("ddp", platform=TWO_NODES | {"interconnect": "ethernet"})
    with pytest.raises(SpecError, match="--node-rank N"):
        find_place(spec, None, None, {})
    with pytest.raises(SpecError, match="expected 0 to 1"):
        find_place(spec, 2, "a", {})


def test_one_node_needs_no_place() -> None:
    assert find_place(make_spec("ddp"), None, None, {"SLURM_NODEID": "3"}) is None


def test_nodes_must_share_the_ranks_equally() -> None:
    with pytest.raises(SpecError, match="divisor of world_size 2"):
        make_spec("ddp", platform=TWO_NODES | {"interconnect": "ethernet", "nodes": 3})
