"""Scenario 4: an API server and a bucket that do not answer, refuse, or live at another time."""

import re
import signal
import time

import pytest

from tests.cluster.lab.client import light_study
from tests.cluster.lab.process import until

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")
FROM_POD = "/upload/"
"""Part of the paths by which pods write."""


def outcomes(clone):
    return sorted(r.outcome for r in clone.records("lab").values())


def test_the_api_server_stops_for_half_a_minute(clone, cluster, kube, add_node):
    if cluster.plane is None:
        pytest.skip("the API server of a cluster given by KUBECONFIG is not ours to stop")
    add_node()
    clone.write_study("lab", light_study(repeats=2, seconds=10))
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said("gke: running: ")
    cluster.plane.stop_apiserver()
    try:
        clone.wait_until_said("gke: cluster https.*; every Job is kept, asking again every 1 s", 60)
        time.sleep(20)  # with the client's own retries before: about half a minute without an API server
        assert client.poll() is None, clone.said()
    finally:
        cluster.plane.start_apiserver()
    assert client.wait(240) == 0, clone.said()
    assert "gke: the cluster or bucket answers again" in clone.said()
    assert outcomes(clone) == ["deadline", "deadline"]
    assert len(kube.jobs()) == 2


def test_a_control_plane_lost_amid_creation_repeats_nothing(api, clone, cluster, kube):
    if cluster.plane is None:
        pytest.skip("the API server of a cluster given by KUBECONFIG is not ours to stop")
    runs = 60
    clone.write_study("lab", light_study(repeats=runs))
    api.fault = lambda method, path, body: time.sleep(1) if method == "POST" else None
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig))
    until(lambda: len(kube.jobs()) > 2, 60, "the first Jobs")
    asked = sum(count for what, count in api.requests.items() if what.startswith("POST"))
    cluster.plane.stop_apiserver()
    assert 0 < asked < runs, "the API server died too late"
    cluster.plane.start_apiserver()
    until(lambda: len(kube.jobs()) == runs, 120, "all Jobs")
    clone.wait_until_said(f"gke: waiting: {runs} runs ")
    client.send_signal(signal.SIGINT)
    client.wait(20)
    assert f"detached; {runs} Jobs go on" in clone.said()
    assert len(kube.jobs()) == runs


def test_a_503_from_the_bucket_loses_nothing(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study())
    bucket.fault = lambda method, path, body: "503"
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said("503.*; every Job is kept", 90)
    assert kube.jobs() == [], "without a look into the bucket, a finished run might be repeated"
    bucket.fault = lambda method, path, body: None
    clone.wait_until_said("gke: running: ")
    bucket.fault = lambda method, path, body: "503" if FROM_POD in path else None
    until(lambda: any("POST /upload" in r for r in bucket.requests), 60, "the pod to try an upload")
    time.sleep(5)
    bucket.fault = lambda method, path, body: None
    assert client.wait(120) == 0, clone.said()
    assert outcomes(clone) == ["deadline"]
    assert len(kube.pods()) == 1


def test_a_client_can_leave_a_hanging_bucket(clone, kube, bucket):
    clone.write_study("lab", light_study())
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said("gke: waiting: ")
    bucket.fault = lambda method, path, body: "hang"
    hanging = sum(bucket.requests.values())
    until(lambda: sum(bucket.requests.values()) > hanging, 20, "a request that hangs")
    sent_s = time.monotonic()
    client.send_signal(signal.SIGINT)
    client.wait(20)
    assert time.monotonic() - sent_s < 2.0, clone.said()
    assert len(kube.jobs()) == 1


def test_a_bucket_closed_to_the_client_starts_nothing(clone, kube, bucket):
    clone.write_study("lab", light_study())
    bucket.fault = lambda method, path, body: "403"
    assert clone.run(*ONLY_RUNS, timeout_s=60) == 1
    assert "permission denied: the account needs roles/storage.objectViewer on the bucket" in clone.said()
    assert "Jobs go on" not in clone.said()
    assert kube.jobs() == []


def test_a_bucket_closed_to_pods_loses_nothing(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study())
    # Closed once the pod runs: one that is closed before is told at once, and then nothing is measured.
    bucket.fault = lambda method, path, body: "403" if FROM_POD in path and b"pod-1.json" not in body else None
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    ((path, record),) = clone.records("lab").items()
    assert record.outcome == "deadline"
    assert any("Recovered from the pod's log" in note for note in record.notes)
    assert (clone.folder / "results/lab" / path / "k8s.json").exists()
    assert len(kube.pods()) == 1, "a second pod could not deliver either"


def test_a_bucket_closed_throughout_is_upload_failed(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study())
    bucket.fault = lambda method, path, body: "403" if FROM_POD in path else None
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert outcomes(clone) == ["upload_failed"]
    assert len(kube.pods()) == 1


def test_an_overwritten_file_blocks_no_other_run(clone, new_clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study(repeats=2))
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    record = bucket.records()[0]
    attempt = record.removesuffix("/record.json")
    name = next(n for n in bucket.objects() if n.startswith(f"{attempt}/pods/1/try-1/"))
    bucket.put(name, b"something else")
    other = new_clone()
    other.write_study("lab", light_study(repeats=2))
    assert other.run(*ONLY_RUNS) == 1
    below = attempt.removeprefix("lab/")
    assert re.search(
        rf"gke: no result: .*{re.escape(name.removeprefix('lab/'))}: found sha256 .* record says .*"
        rf"to run it anew delete {re.escape(below)}/ there and its Job", other.said()
    )  # fmt: skip
    assert outcomes(other) == ["deadline"]
    assert other.parts() == []
    # The message must say what to do.
    for listed in bucket.objects():
        if listed.startswith(attempt):
            bucket.delete(listed)
    (job,) = (j for j in kube.jobs() if below.endswith(j["metadata"]["annotations"]["dtbench/path"]))
    kube.batch.delete_namespaced_job(job["metadata"]["name"], kube.namespace, propagation_policy="Background")
    until(lambda: len(kube.jobs()) == 1, 30, "the Job to be gone")
    assert other.run(*ONLY_RUNS) == 0, other.said()
    assert outcomes(other) == ["deadline"] * 2


def test_a_deleted_record_comes_from_the_log(clone, new_clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study())
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    (record,) = bucket.records()
    bucket.delete(record)
    other = new_clone()
    other.write_study("lab", light_study())
    assert other.run(*ONLY_RUNS) == 0, other.said()
    (found,) = other.records("lab").values()
    assert found.outcome == "deadline"
    assert any("Recovered from the pod's log" in note for note in found.notes)
    assert len(kube.pods()) == 1


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_wrong_client_clock_changes_nothing(hours, clone, kube, add_node, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n_time, _ns = time.time, time.time_ns\n"
        f"time.time = lambda: _time() + {hours * 3600}\n"
        f"time.time_ns = lambda: _ns() + {hours * 3600} * 10**9\n"
    )
    add_node()
    clone.write_study("lab", light_study(repeats=2))
    assert clone.run(*ONLY_RUNS, PYTHONPATH=clone.python_path(tmp_path)) == 0, clone.said()
    assert outcomes(clone) == ["deadline", "deadline"]
    assert len(kube.jobs()) == len(kube.pods()) == 2
