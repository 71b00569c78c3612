"""Scenario 9: what comes late or slowly: credentials, the API server's answers, big files."""

import hashlib
import json
import random
import re
import time

import pytest

from tests.cluster.lab.client import check_files, light_study
from tests.cluster.lab.metadata import Metadata
from tests.cluster.lab.process import until

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")


def outcomes(clone):
    return sorted(r.outcome for r in clone.records("lab").values())


def test_five_seconds_of_api_latency_cost_only_time(api, clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study(repeats=2))
    api.latency_s = 5
    assert clone.run(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig)) == 0, clone.said()
    assert outcomes(clone) == ["deadline"] * 2
    assert len(kube.jobs()) == len(kube.pods()) == 2
    assert "every Job is kept" not in clone.said()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("late_s", [60, 190])
def test_pod_and_client_wait_for_credentials(late_s, clone, kube, bucket, add_node, tmp_path):
    server = Metadata(tmp_path, late_s)
    variables = server.environment(bucket.endpoint, tmp_path)
    add_node(environment=variables)
    clone.write_study("lab", light_study())
    patience = {"SNAKEMAKE_GKE_CREDENTIALS_PATIENCE": "300"}
    # A client with credentials makes the Job, so that its pod waits for its own beside the late client.
    assert clone.run("--immediate-submit", "--notemp", *ONLY_RUNS, **patience) == 0, clone.said()
    there_at_s = server.start()
    try:
        client = clone.start(*ONLY_RUNS, **patience, **variables)
        clone.wait_until_said("gke: bucket .*no credentials: .*asking again for 300 s", 60)
        (pod,) = until(kube.pods, 30, "the pod")
        name = pod["metadata"]["name"]
        until(lambda: "asking again for 300 s" in said_by(kube, name), 60, "the pod to wait for credentials")
        time.sleep(max(0.0, there_at_s - time.monotonic() - 5))
        assert client.poll() is None, clone.said()
        assert bucket.records() == []
        assert client.wait(240) == 0, clone.said()
    finally:
        server.stop()
    assert server.answers()["refused"] > 0
    assert outcomes(clone) == ["deadline"]
    assert len(kube.jobs()) == len(kube.pods()) == 1
    check_files(clone, "lab")


def said_by(kube, pod):
    """A pod's log so far; empty before its container has started."""
    try:
        return kube.core.read_namespaced_pod_log(pod, kube.namespace)
    except Exception:
        return ""


def fatten(bucket, files, size_bytes):
    """Give every record of the bucket some big files, as if its pod had uploaded them."""
    content = random.Random(8).randbytes(size_bytes)
    for name in bucket.records():
        record = json.loads(bucket.get(name))
        for number in range(files):
            path = f"traces/big-{number}.bin"
            bucket.put(f"{name.removesuffix('record.json')}pods/{record['pod']}/{path}", content)
            record["files"].append(
                {"path": path, "size_bytes": size_bytes, "sha256": hashlib.sha256(content).hexdigest()}
            )
        bucket.put(name, json.dumps(record).encode())


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_fifty_kills_amid_downloads_lose_and_repeat_nothing(clone, new_clone, kube, bucket, add_node):
    add_node()
    runs, kills, files = 12, 50, 8
    clone.write_study("lab", light_study(repeats=runs))
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    fatten(bucket, files, 4 * 2**20)
    before = [sorted(x["metadata"]["uid"] for x in of()) for of in (kube.jobs, kube.pods)]
    objects = bucket.objects()
    bucket.body_bytes_per_s = 2 * 2**20  # 2 s a file
    other, moments, amid = new_clone(), random.Random(9), 0
    other.write_study("lab", light_study(repeats=runs))
    for _ in range(kills):
        client = other.start(*ONLY_RUNS)
        until(lambda client=client: bucket.sending or client.poll() is not None, 60, "a download or the end")
        time.sleep(moments.uniform(0.0, 2.5))
        amid += bucket.sending > 0 and client.poll() is None
        client.kill()
        client.wait()
        until(lambda: not bucket.sending, 30, "the connections to be closed")
        check_files(other, "lab")
    assert amid > kills / 2, f"only {amid} of {kills} clients were killed while files were on their way"
    bucket.body_bytes_per_s = None
    assert other.run(*ONLY_RUNS, timeout_s=400) == 0, other.said()
    assert outcomes(other) == ["deadline"] * runs
    check_files(other, "lab")
    assert all(
        len(list((other.folder / "results/lab" / p / "traces").iterdir())) == files for p in other.records("lab")
    )
    assert other.parts() == []
    assert not re.search("[1-9][0-9]* Jobs to create", other.said())
    assert [sorted(x["metadata"]["uid"] for x in of()) for of in (kube.jobs, kube.pods)] == before
    assert bucket.objects() == objects
