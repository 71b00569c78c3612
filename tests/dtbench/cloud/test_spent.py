"""Node-seconds and dollars of runs on GKE, from the facts beside their records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dtbench.cloud.spent import Held, held, idle_s, read_receipts, receipt_lines, spent, spent_rows
from dtbench.report.document import build, texts
from dtbench.results.runs import load_runs
from dtbench.study.matrix import Matrix
from dtbench.study.platforms import load_prices

from tests.dtbench.conftest import ROOT, make_record, write_record

STUDY = """
platforms: [a100-40gb-x4]
configs: [ddp]
arms: [matched]
repeats: 2
protocol: {preset: published}
"""
PRICES = load_prices(ROOT / "config" / "prices.yaml")


def pod(made: str, scheduled: str, started: str, ended: str | None, node: str | None = "n1") -> dict[str, Any]:
    day = "2026-12-03T{}Z"
    state = {"terminated": {"startedAt": day.format(started), "finishedAt": day.format(ended)}} if ended else {}
    return {
        "metadata": {"name": "p", "creationTimestamp": day.format(made)},
        "spec": {"nodeName": node},
        "status": {
            "conditions": [{"type": "PodScheduled", "lastTransitionTime": day.format(scheduled)}],
            "containerStatuses": [{"state": state or {"running": {"startedAt": day.format(started)}}}],
        },
    }


PREEMPTED = pod("10:00:00", "10:10:00", "10:12:00", "10:20:00")
LAST = pod("10:20:00", "10:30:00", "10:30:30", "10:40:00", node="n2")


def test_a_pod_is_held_from_its_node_on() -> None:
    facts = {
        "job": {"created": "2026-12-03T09:00:00Z"},
        "pods": [LAST, PREEMPTED, pod("1" * 8, "10:00:00", "", None, None)],
    }
    first, second = held(facts)
    assert (first.scheduled_s - first.requested_s, first.started_s - first.scheduled_s) == (4200, 120)
    assert (second.scheduled_s - second.requested_s, second.ended_s - second.scheduled_s) == (600, 600)


def test_an_ending_pod_ends_with_its_record() -> None:
    ending = pod("10:00:00", "10:10:00", "10:12:00", None)
    assert held({"pods": [ending]}) == []
    (found,) = held({"pods": [ending]}, "2026-12-03T10:20:00+00:00")
    assert found.ended_s - found.started_s == 480


def test_a_lost_pod_ends_with_its_node() -> None:
    lost = pod("10:00:00", "10:10:00", "10:12:00", None)
    lost["status"]["conditions"].append({"type": "DisruptionTarget", "lastTransitionTime": "2026-12-03T10:15:00Z"})
    first, _ = held({"pods": [lost, LAST]})
    assert first.ended_s - first.started_s == 180


def test_idle_nodes_are_counted_once_each() -> None:
    def at(node: str, start: float, end: float) -> Held:
        return Held(node=node, requested_s=0, scheduled_s=start, started_s=start, ended_s=end)

    assert idle_s([at("a", 0, 100), at("a", 130, 200), at("b", 0, 50)]) == 30 + 2 * 300
    assert idle_s([at("a", 0, 100), at("a", 50, 80)]) == 300


def test_a_study_is_priced_with_its_failures(tmp_path: Path, study: Callable[[str], Matrix]) -> None:
    matrix = study(STUDY)
    for spec, outcome in zip(matrix.runs, ("ok", "preemption"), strict=True):
        record = write_record(tmp_path, make_record(spec, outcome=outcome))
        (record.parent / "k8s.json").write_text(json.dumps({"pods": [PREEMPTED, LAST]}))
    cell, platform = spent(load_runs(matrix, tmp_path), tmp_path, PRICES)
    assert (cell.config, cell.pods, cell.node_s, platform.node_s) == ("ddp", 4, 2 * 1200, 2 * 1200 + 2 * 300)
    spec = matrix.runs[0]
    assert cell.tokens == spec.tokens_per_step * spec.protocol.timed_steps, "only the finished run trained"
    assert cell.paid_usd == pytest.approx(5.17342 * 2400 / 3600)
    assert cell.list_usd == pytest.approx(14.69354 * 2400 / 3600)
    assert cell.usd_per_mtoken == pytest.approx(5.17342 * 2400 / 3600 / cell.tokens * 1e6)
    assert spent_rows([platform])[0][:4] == ["a100-40gb-x4", "all", "all", "4"]


def test_a_fallback_is_paid_as_it_was_bought(tmp_path: Path, study: Callable[[str], Matrix]) -> None:
    matrix = study(STUDY)
    labels = {"node.kubernetes.io/instance-type": "a2-highgpu-4g", "topology.kubernetes.io/zone": "us-central1-c"}
    nodes = {"n1": labels | {"cloud.google.com/gke-spot": "true"}, "n2": labels}
    record = write_record(tmp_path, make_record(matrix.runs[0]))
    (record.parent / "k8s.json").write_text(json.dumps({"pods": [PREEMPTED, LAST], "bought": nodes}))
    cell, platform = spent(load_runs(matrix, tmp_path), tmp_path, PRICES)
    assert cell.paid_usd == pytest.approx((5.17342 + 14.69354) * 600 / 3600)
    assert platform.paid_usd == pytest.approx((5.17342 + 14.69354) * 900 / 3600)
    assert cell.list_usd == pytest.approx(14.69354 * 1200 / 3600)


def test_an_unknown_price_leaves_hours(tmp_path: Path, study: Callable[[str], Matrix]) -> None:
    matrix = study(STUDY)
    record = write_record(tmp_path, make_record(matrix.runs[0]))
    (record.parent / "k8s.json").write_text(json.dumps({"pods": [PREEMPTED]}))
    cell = spent(load_runs(matrix, tmp_path), tmp_path, {})[0]
    assert (cell.node_s, cell.paid_usd, cell.usd_per_mtoken) == (600, None, None)
    assert spent_rows([cell])[0][-3:] == ["-", "-", "-"]


def test_the_report_shows_both(tmp_path: Path, study: Callable[[str], Matrix]) -> None:
    matrix = study(STUDY)
    record = write_record(tmp_path, make_record(matrix.runs[0]))
    row: dict[str, Any] = {
        "platform": "a100-40gb-x4",
        "zone": "us-central1-a",
        "answer": "stock",
        "words": "GCE out of resources",
    }
    row |= {"first": "t1", "last": "t2", "seen": {"a": 2, "b": 3}}
    (tmp_path / "receipts.json").write_text(json.dumps([row]))
    (said,) = receipt_lines(read_receipts(tmp_path))
    assert said == "a100-40gb-x4 us-central1-a: refused, no stock 5 times, first t1, last t2: GCE out of resources"
    (record.parent / "k8s.json").write_text(json.dumps({"pods": [PREEMPTED]}))
    written = texts(build(matrix, tmp_path))
    for name in ("report.md", "report.html"):
        assert "refused, no stock 5 times" in written[name]
        assert "paid $/Mtoken" in written[name]
