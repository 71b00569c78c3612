"""What the cloud answered to requests for machines, from events as GKE's autoscaler and Kueue write them."""

import json

import pytest
from snakemake_executor_plugin_gke.collect import RECEIPTS, keep_receipts
from snakemake_executor_plugin_gke.status import join_receipts, receipts
from snakemake_executor_plugin_gke.telling import advice

JOBS = {"run-a1": {"metadata": {"name": "run-a1", "labels": {"dtbench/platform": "h100-x8"}}}}
GROUP = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/instanceGroups/gke-bench-nap-a3-grp 0->1"


def event(reason, message, count=1, last="2026-12-03T10:09:00Z", uid="e1", about="run-a1-x7k2p", kind="Pod"):
    return {
        "metadata": {"uid": uid}, "involvedObject": {"kind": kind, "name": about}, "reason": reason,
        "message": message, "count": count, "firstTimestamp": "2026-12-03T10:00:00Z", "lastTimestamp": last,
    }  # fmt: skip


def failed(why, zones="us-central1-a"):
    return (
        f"Node scale up in zones {zones} associated with this pod failed: {why}. Pod is at risk of not being scheduled."
    )


@pytest.mark.parametrize(
    ("given", "answer", "zones"),
    [
        (event("TriggeredScaleUp", f"pod triggered scale-up: [{{{GROUP} (max: 1)}}]"), "asked", ["us-central1-a"]),
        (event("FailedScaleUp", failed("GCE quota exceeded")), "quota", ["us-central1-a"]),
        (event("FailedScaleUp", failed("GCE out of resources", "us-east4-a, us-east4-c")), "stock",
         ["us-east4-a", "us-east4-c"]),
        (event("FailedScaleUp", failed("Internal error")), "failed", ["us-central1-a"]),
        (event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max size reached"), "no pool fits", [""]),
        (event("Pending", "couldn't assign flavors to pod set main: insufficient quota", about="job-run-a1-3f9c1",
               kind="Workload"), "queue", [""]),
        (event("TriggeredScaleUp", "pod triggered scale-up: []", about="run-a1-0-x7k2p"), "asked", [""]),
    ],
)  # fmt: skip
def test_each_answer_is_told_by_its_zone(given, answer, zones):
    rows = receipts(JOBS, [given])
    assert [(row["platform"], row["zone"], row["answer"]) for row in rows] == [("h100-x8", z, answer) for z in zones]
    assert all(row["words"] == given["message"] for row in rows)


@pytest.mark.parametrize(
    "given",
    [event("FailedScheduling", "0/2 nodes"), event("TriggeredScaleUp", "x", about="another-a1-x7k2p")],
)
def test_other_events_give_no_receipt(given):
    assert receipts(JOBS, [given]) == []


def test_an_event_is_counted_once():
    early = receipts(JOBS, [event("FailedScaleUp", failed("GCE out of resources"), 2, "2026-12-03T10:02:00Z")])
    late = receipts(JOBS, [event("FailedScaleUp", failed("GCE out of resources"), 7)])
    other = receipts(JOBS, [event("FailedScaleUp", failed("GCE out of resources"), 1, uid="e2")])
    (row,) = join_receipts(join_receipts(early, late), join_receipts(late, other))
    assert sum(row["seen"].values()) == 8
    assert (row["first"], row["last"]) == ("2026-12-03T10:00:00Z", "2026-12-03T10:09:00Z")


def test_receipts_outlive_their_events(tmp_path):
    folders = {"run-a1": tmp_path / "study"}
    keep_receipts(folders, JOBS, [event("FailedScaleUp", failed("GCE quota exceeded"))])
    keep_receipts(folders, JOBS, [])
    keep_receipts(folders, JOBS, [event("TriggeredScaleUp", f"[{{{GROUP}}}]", uid="e2")])
    rows = json.loads((tmp_path / "study" / RECEIPTS).read_text())
    assert [row["answer"] for row in rows] == ["asked", "quota"]
    (tmp_path / "study" / RECEIPTS).write_text("[{")
    keep_receipts(folders, JOBS, [event("TriggeredScaleUp", "x")])
    assert (tmp_path / "study" / RECEIPTS).read_text() == "[{", "an unreadable file is not overwritten"


def test_googles_refusals_come_with_advice():
    assert "ask for more" in advice(failed("GCE quota exceeded"))
    assert "no stock" in advice(failed("GCE out of resources"))
