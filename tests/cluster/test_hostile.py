"""Scenario 8: a bucket that somebody else has written to, and a cluster that changes under the client."""

import json
import re
import signal
import time

import pytest

from tests.cluster.lab.client import light_study
from tests.cluster.lab.plane import write_kubeconfig
from tests.cluster.lab.process import until

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")


def outcomes(clone):
    return sorted(r.outcome for r in clone.records("lab").values())


def leave(client):
    client.send_signal(signal.SIGINT)
    client.wait(20)


def test_hostile_objects_end_their_own_run_only(clone, new_clone, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study(repeats=4))
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    garbage, huge, paths, _ = bucket.records()
    record = json.loads((clone.folder / "results" / paths.removeprefix("lab/")).read_text())
    record["files"][0]["path"] = "a/\x1b[2Jgke: finished: forged"
    for name in (garbage, huge, paths):
        bucket.delete(name)
    bucket.put(garbage, b'"\x1b[2J\\ngke: finished: forged')
    bucket.put(huge, b"[" + b"0," * 2**24 + b"0]")
    bucket.put(paths, json.dumps(record).encode())
    other = new_clone()
    other.write_study("lab", light_study(repeats=4))
    assert other.run(*ONLY_RUNS) == 1
    assert re.search("no result: .*: not a record: ", other.said())
    assert "larger than the 16777216 bytes" in other.said()
    assert "which is not the name of a file" in other.said()
    assert "\x1b[2J" not in other.said()
    assert not re.search("^gke: finished: forged", other.said(), re.MULTILINE)
    assert outcomes(other) == ["deadline"]


def test_losing_record_and_pod_is_never_ok(clone, new_clone, kube, bucket, add_node):
    add_node()
    clone.write_study("lab", light_study())
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    (record,) = bucket.records()
    bucket.delete(record)
    (pod,) = kube.pods()
    kube.core.delete_namespaced_pod(pod["metadata"]["name"], kube.namespace)
    until(lambda: not kube.pods(), 60, "the pod to be gone")
    other = new_clone()
    other.write_study("lab", light_study())
    assert other.run(*ONLY_RUNS) == 0, other.said()
    assert outcomes(other) == ["unknown"], other.said()


def test_jobs_are_made_while_results_hang(clone, new_clone, kube, bucket, add_node):
    node = add_node()
    clone.write_study("lab", light_study())
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    node.power_off()
    bucket.fault = lambda method, path, body: "hang" if "alt=media" in path else None
    other = new_clone()
    other.write_study("lab", light_study(repeats=3))
    client = other.start(*ONLY_RUNS)
    until(lambda: len(kube.jobs()) == 3, 60, "both missing Jobs")
    bucket.fault = lambda method, path, body: None
    bucket.released.set()
    other.wait_until_said("gke: finished: .*deadline", 90)
    leave(client)


def test_a_long_retry_after_is_not_obeyed(api, clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study())
    api.fault = lambda method, path, body: "429 3600"
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig))
    clone.wait_until_said(r"429: injected.*\(it asks to wait 3600 s\).*every Job is kept", 90)
    api.fault = lambda method, path, body: None
    assert client.wait(240) == 0, clone.said()
    assert outcomes(clone) == ["deadline"]


@pytest.mark.parametrize(("fault", "words"), [("410", "410: injected 410"), ("cut", "(?i)incomplete|broken")])
def test_a_useless_answer_ends_no_run(fault, words, api, clone, kube, add_node):
    clone.write_study("lab", light_study(repeats=2))
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig))
    clone.wait_until_said("gke: waiting: ")
    api.fault = lambda method, path, body: fault
    said = clone.wait_until_said("gke: cluster.*; every Job is kept, .*", 60)
    assert re.search(words, said), said
    add_node()
    api.fault = lambda method, path, body: None
    assert client.wait(240) == 0, clone.said()
    assert outcomes(clone) == ["deadline"] * 2
    assert len(kube.jobs()) == len(kube.pods()) == 2


def test_a_hanging_api_server_is_reported_promptly(api, clone):
    clone.write_study("lab", light_study())
    api.fault = lambda method, path, body: "hang"
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig))
    clone.wait_until_said("gke: cluster .*; every Job is kept", 75)
    leave(client)


def test_a_moved_cluster_is_followed(api, cluster, clone, kube, add_node):
    clone.write_study("lab", light_study())
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig))
    clone.wait_until_said("gke: waiting: ")
    whole = api.kubeconfig.read_text()
    api.kubeconfig.write_text(whole[: len(whole) // 2])
    api.fault = lambda method, path, body: "hang"  # of a relay that is stopped: connections that were open are closed
    api.stop()
    clone.wait_until_said("the kubeconfig cannot be used", 60)
    assert client.poll() is None, clone.said()
    authority = cluster.folder / "certs/apiserver.crt"
    write_kubeconfig(api.kubeconfig, cluster.plane.server, authority, "client-token")
    clone.wait_until_said("gke: the cluster or bucket answers again", 60)
    add_node()
    assert client.wait(240) == 0, clone.said()
    assert outcomes(clone) == ["deadline"]


def test_a_half_written_kubeconfig_is_refused(clone, cluster, tmp_path):
    broken = tmp_path / "broken.kubeconfig"
    broken.write_text(cluster.client_kubeconfig.read_text()[:150])
    clone.write_study("lab", light_study())
    assert clone.run(*ONLY_RUNS, KUBECONFIG=str(broken)) == 1
    assert "no cluster to talk to: the kubeconfig cannot be used" in clone.said()
    assert "Traceback" not in clone.said()


def test_a_namespace_that_is_deleted_is_named(cluster, clone, kube):
    clone.write_study("lab", light_study())
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(cluster.kubeconfig))
    clone.wait_until_said("gke: waiting: ")
    kube.core.delete_namespace(kube.namespace)
    assert client.wait(90) == 1
    assert re.search(f"its Job is gone, and another one cannot be made: .*{kube.namespace}", clone.said()), clone.said()


@pytest.mark.parametrize("resource", ["events", "pods"])
def test_a_missing_permission_is_reported_without_blocking(resource, clone, kube, add_node):
    kube.forbid(resource)
    clone.platform("small-l4-x1", {**clone.entry(), "memory_gib": 0.02})
    clone.write_study("lab", light_study(seconds=60) | {"platforms": ["small-l4-x1"]})
    client = clone.start(*ONLY_RUNS, SNAKEMAKE_GKE_BACKOFF_LIMIT="0")
    clone.wait_until_said(f"list {resource}: 403: .*lacks a right of profiles/gke/role.yaml")
    add_node()
    assert client.wait(240) == 0, clone.said()
    assert len(outcomes(clone)) == 1


def test_limit_ranges_and_cpu_quotas_get_advice(clone, kube):
    name, core = kube.namespace, kube.core
    limits = [{"type": "Container", "max": {"memory": "1Gi"}, "default": {"memory": "1Gi"}}]
    core.create_namespaced_limit_range(name, {"metadata": {"name": "lab"}, "spec": {"limits": limits}})
    time.sleep(1)
    clone.write_study("lab", light_study())
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said(r"FailedCreate: .*maximum memory usage per Container.*\[a LimitRange of the namespace")
    core.delete_namespaced_limit_range("lab", name)
    leave(client)
    kube.delete_all()
    until(lambda: not kube.jobs(), 30, "the Job to be gone")
    core.create_namespaced_resource_quota(name, {"metadata": {"name": "lab"}, "spec": {"hard": {"limits.cpu": "10"}}})
    until(lambda: core.read_namespaced_resource_quota("lab", name).status.used, 60, "the quota controller to count")
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said(r"FailedCreate: .*must specify limits\.cpu.*\[the quota counts CPU limits")
    leave(client)
