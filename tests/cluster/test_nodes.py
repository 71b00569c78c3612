"""Scenario 3: nodes and pods that go away in every way a cluster knows."""

import re
import threading

import pytest

from tests.cluster.lab.client import IMAGE, check_files, light_study
from tests.cluster.lab.process import until

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")
SECONDS = 20.0
"""How long the runs of these tests last: long enough to be hit, short enough to wait for."""


def only(clone):
    records = clone.records("lab")
    assert len(records) == 1, clone.said()
    (path, record), *_ = records.items()
    return clone.folder / "results" / "lab" / path, record


def started(kube, bucket):
    """Wait until the one pod's supervisor has announced itself; returns the pod's name."""
    until(
        lambda: any(name.endswith("/pod-1.json") for name in bucket.objects()), 90, "the first pod to announce itself"
    )
    return kube.running()[0]["metadata"]["name"]


def test_a_spot_shutdown_costs_only_time(clone, kube, bucket, add_node):
    node = add_node("a")
    clone.write_study("lab", light_study(seconds=SECONDS))
    client = clone.start(*ONLY_RUNS)
    started(kube, bucket)
    node.shut_down()
    kube.core.delete_node(node.node.name)
    until(lambda: any("/pods/1/" in n for n in bucket.records()), 30, "the preempted pod's record")
    assert len([n for n in bucket.records() if "/pods/" not in n]) == 0
    add_node("b")
    assert client.wait(120) == 0, clone.said()
    _, record = only(clone)
    assert (record.outcome, record.pod) == ("deadline", 2)
    assert len(kube.jobs()) == 1
    assert not kube.jobs()[0]["status"].get("failed"), "a preemption must not be counted"


def test_a_dead_node_is_replaced(clone, kube, bucket, add_node):
    node = add_node("a")
    clone.write_study("lab", light_study(seconds=SECONDS))
    client = clone.start(*ONLY_RUNS)
    started(kube, bucket)
    node.power_off()
    kube.core.delete_node(node.node.name)
    add_node("b")
    assert client.wait(200) == 0, clone.said()
    _, record = only(clone)
    assert (record.outcome, record.pod) == ("deadline", 2)
    assert len(kube.jobs()) == 1


def test_two_pods_delivering_at_once_leave_one_record(clone, kube, bucket, add_node):
    node = add_node("a")
    clone.write_study("lab", light_study(seconds=8))
    client = clone.start(*ONLY_RUNS)
    started(kube, bucket)
    arrived, both = set(), threading.Event()

    def hold_records(method, path, body):
        if "ifGenerationMatch=0" in path and b'/record.json"' in body:
            arrived.add(re.search(rb'"pod": ?(\d+)', body)[1])
            both.wait(100)

    bucket.fault = hold_records
    # The node is lost for Kubernetes, while its pod goes on.
    node.isolate()
    kube.core.delete_node(node.node.name)
    add_node("b")
    # Kubernetes gives up a pod of a deleted node after 40 to 60 s.
    until(lambda: arrived == {b"1", b"2"}, 150, "both pods to deliver their records")
    both.set()
    assert client.wait(120) == 0, clone.said()
    _, record = only(clone)
    assert record.outcome == "deadline"
    check_files(clone, "lab")
    assert len([name for name in bucket.records() if "/pods/" not in name]) == len(kube.jobs()) == 1


def test_an_evicted_pod_is_replaced_and_not_counted(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study(seconds=SECONDS))
    client = clone.start(*ONLY_RUNS)
    kube.evict(started(kube, bucket))
    assert client.wait(120) == 0, clone.said()
    _, record = only(clone)
    assert (record.outcome, record.pod) == ("deadline", 2)
    assert any("/pods/1/" in n for n in bucket.records()), "the evicted pod had time to deliver what it knew"
    assert not kube.jobs()[0]["status"].get("failed")


def test_exceeding_pod_memory_is_recorded_as_host_oom(clone, add_node):
    add_node()
    clone.platform("small-l4-x1", {**clone.entry(), "memory_gib": 0.05})
    clone.write_study("lab", light_study(seconds=60) | {"platforms": ["small-l4-x1"]})
    assert clone.run(*ONLY_RUNS, SNAKEMAKE_GKE_BACKOFF_LIMIT="0") == 0, clone.said()
    folder, record = only(clone)
    assert record.outcome == "host_oom"
    assert any("OOMKilled" in e.text for e in record.diagnosis.evidence)
    assert "OOMKilled" in (folder / "k8s.json").read_text()


def test_an_unpullable_image_is_reported_then_given_up(clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study())
    image = IMAGE.replace("/bench/", "/missing/")
    status = clone.run(*ONLY_RUNS, SNAKEMAKE_GKE_IMAGE=image, SNAKEMAKE_GKE_START_PATIENCE="4")
    assert status == 0, clone.said()
    _, record = only(clone)
    assert record.outcome == "image_pull"
    assert re.search(r"gke: waiting: .*(ErrImagePull|ImagePullBackOff): .*missing", clone.said())
    # Left alone the pod would hold its node forever.
    until(lambda: not kube.jobs(), 20, "the Job to be deleted")


def test_a_wait_quotes_the_scheduler(clone, add_node):
    clone.write_study("lab", light_study(repeats=3))
    client = clone.start(*ONLY_RUNS)
    said = clone.wait_until_said(r"gke: waiting: 3 runs .*")
    assert re.search(
        r"3 runs \(lab-l4-x1 ddp defaults r\d, .*FailedScheduling: .*since \d\d-\d\d \d\d:\d\dZ\)", said
    ), said
    add_node()
    assert client.wait(120) == 0, clone.said()
    lines = [line for line in clone.said().splitlines() if line.startswith("gke: ")]
    assert len(lines) == len(set(lines)), "a line was printed twice"


def test_a_job_deleted_by_hand_is_recreated(clone, kube, add_node):
    clone.write_study("lab", light_study())
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said("gke: waiting: ")
    (job,) = kube.jobs()
    kube.batch.delete_namespaced_job(job["metadata"]["name"], kube.namespace, propagation_policy="Background")
    assert client.wait(60) == 1
    assert re.search("no result: .*Job was deleted and left no record; the same command creates it anew", clone.said())
    add_node()
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert only(clone)[1].outcome == "deadline"


def test_a_deleted_running_job_leaves_its_record(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study(seconds=60))
    client = clone.start(*ONLY_RUNS)
    started(kube, bucket)
    (job,) = kube.jobs()
    kube.batch.delete_namespaced_job(job["metadata"]["name"], kube.namespace, propagation_policy="Background")
    assert client.wait(60) == 0, clone.said()
    assert only(clone)[1].outcome == "preemption"


def test_an_expired_jobs_record_is_collected(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study())
    immediate = ("--immediate-submit", "--notemp", *ONLY_RUNS)
    assert clone.run(*immediate, SNAKEMAKE_GKE_TTL="2", timeout_s=60) == 0, clone.said()
    until(lambda: bucket.records() and not kube.jobs(), 120, "the Job to finish and expire")
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert only(clone)[1].outcome == "deadline"
    assert kube.jobs() == []
