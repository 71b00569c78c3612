"""What a step sends: predicted by the engines' descriptors, held against what NCCL and the network carried."""

from collections import defaultdict
from pathlib import Path

import pytest

from harness.contract.engines.traffic import Message, crossing
from harness.contract.errors import SpecError
from harness.contract.record import Record, read_record
from harness.measure.ledger import messages
from tests.engines.specs import make_spec

RESULTS = Path(__file__).resolve().parents[2] / "results"
KINDS = {"allgather": "all_gather", "reducescatter": "reduce_scatter", "allreduce": "all_reduce"}


def profiled() -> list[Record]:
    """One finished record with a profiled pass per config and arm of the stored studies on two H200s.

    Without the tuned arm, whose chosen settings are not those of the spec.
    """
    found: dict[tuple[str, str], Record] = {}
    for path in sorted(RESULTS.glob("h200-x2-*/**/record.json")):
        try:
            record = read_record(path)
        except SpecError:
            continue
        measured = record.measured
        fixed = record.outcome == "ok" and record.spec.identity.arm != "tuned"
        if fixed and measured and measured.profile and measured.profile.get("collectives"):
            found.setdefault((record.spec.identity.config, record.spec.identity.arm), record)
    return list(found.values())


@pytest.mark.parametrize("record", profiled(), ids=lambda r: f"{r.spec.identity.config}-{r.spec.identity.arm}")
def test_predicted_messages_are_what_nccl_carried(record: Record) -> None:
    assert record.measured is not None
    assert record.measured.profile is not None
    expected: dict[str, int] = defaultdict(int)
    for message in messages(record.spec) or ():
        expected[message.kind] += message.bytes
    carried: dict[str, int] = defaultdict(int)
    for name, seen in record.measured.profile["collectives"].items():
        carried[KINDS[name]] += seen["payload_bytes"]
    total = sum(carried.values())
    for kind in expected.keys() | carried.keys():
        assert abs(expected[kind] - carried[kind]) < 0.02 * total, (kind, expected[kind] / total, carried[kind] / total)


NOTHING_LIVES = {"max_live_parameters": 1, "max_reuse_distance": 0, "prefetch_bucket_size": 1}


@pytest.mark.parametrize(
    ("config", "settings", "per_parameter"),
    [
        ("fsdp2-reshard", {}, 8.65),
        ("fsdp2-noreshard", {}, 7.53),
        ("fsdp2-hsdp", {}, 4.01),
        ("zero-3", {}, 7.60),
        ("zero-3-hpz", NOTHING_LIVES, 7.59),
    ],
)
def test_predicted_crossing_is_what_a_link_carried(config: str, settings: dict[str, int], per_parameter: float) -> None:
    """Bytes that left a node per step and parameter: gloo, two nodes of two ranks, model tiny, veth's own counters."""
    changes = {f"engine__settings__{name}": value for name, value in settings.items()}
    spec = make_spec(config, platform__world_size=4, platform__nodes=2, **changes)
    parameters = 2_002_048
    found = crossing(messages(spec) or (), nodes=2, ranks_per_node=2, backend="gloo")
    assert found.bytes / parameters == pytest.approx(per_parameter, rel=0.015)


def test_hpz_gathers_for_backward_inside_a_node() -> None:
    plain, hpz = (
        make_spec(config, platform__world_size=4, platform__nodes=2, engine__settings__max_reuse_distance=0,
                  engine__settings__prefetch_bucket_size=1)
        for config in ("zero-3", "zero-3-hpz")
    )  # fmt: skip
    sent = [crossing(messages(spec) or (), nodes=2, ranks_per_node=2, backend="nccl") for spec in (plain, hpz)]
    assert sent[1].bytes < sent[0].bytes
    assert [m.among for m in messages(hpz) or ()] == ["all", "all", "node"]


def test_one_node_sends_nothing_over_the_network() -> None:
    sent = (Message(kind="all_reduce", bytes=8, calls=1),)
    assert crossing(sent, nodes=1, ranks_per_node=8, backend="nccl").bytes == 0


def test_a_ring_takes_its_hops() -> None:
    sent = (Message(kind="all_gather", bytes=1600, calls=10),)
    found = crossing(sent, nodes=2, ranks_per_node=8, backend="nccl")
    assert (found.bytes, found.hops) == (1500, 150)
    assert found.seconds(1500.0, 0.01) == pytest.approx(2.5)
