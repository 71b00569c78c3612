"""What an API server may say instead of yes (no room, no namespace, who are you, not now), and a queue that waits."""

import json
import re
import signal
import time

import pytest
import yaml

from tests.cluster.lab.client import light_study
from tests.cluster.lab.process import until

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")


def outcomes(clone):
    return sorted(r.outcome for r in clone.records("lab").values())


def limit(kube, **hard):
    """Give the namespace a ResourceQuota; returns when the API server enforces it."""
    hard = {key.replace("__", "/").replace("_", "."): str(value) for key, value in hard.items()}
    kube.core.create_namespaced_resource_quota(kube.namespace, {"metadata": {"name": "lab"}, "spec": {"hard": hard}})
    until(
        lambda: kube.core.read_namespaced_resource_quota("lab", kube.namespace).status.used is not None,
        60, "the quota controller to count",
    )  # fmt: skip


def test_a_namespace_that_is_missing_is_named(clone, cluster):
    clone.write_study("lab", light_study(repeats=2))
    assert clone.run(*ONLY_RUNS, SNAKEMAKE_GKE_NAMESPACE="nowhere") == 1
    assert "in namespace nowhere, or there is no such namespace" in clone.said()
    # Whoever may list in every namespace learns it from the request to make a Job.
    admin = {"SNAKEMAKE_GKE_NAMESPACE": "nowhere", "KUBECONFIG": str(cluster.kubeconfig)}
    assert clone.run(*ONLY_RUNS, **admin) == 1
    assert re.search(r'no result: lab-l4-x1 ddp defaults r1: .*404: namespaces "nowhere" not found', clone.said())


def test_a_job_quota_delays_runs(clone, kube, add_node):
    limit(kube, count__jobs_batch=1)
    clone.write_study("lab", light_study(repeats=3))
    client = clone.start(*ONLY_RUNS, SNAKEMAKE_GKE_TTL="1")
    said = clone.wait_until_said(r"gke: waiting: 2 runs .*exceeded quota.*")
    assert "limited: count/jobs.batch=1" in said
    assert len(kube.jobs()) == 1
    add_node()
    assert client.wait(240) == 0, clone.said()
    assert outcomes(clone) == ["deadline"] * 3


def test_a_leaving_client_names_runs_without_quota(clone, kube):
    limit(kube, count__jobs_batch=1)
    clone.write_study("lab", light_study(repeats=2))
    assert clone.run("--immediate-submit", "--notemp", *ONLY_RUNS) == 1
    assert "exceeded quota" in clone.said()
    assert len(kube.jobs()) == 1


def test_a_pod_quota_is_quoted(clone, kube, add_node):
    limit(kube, pods=0)
    add_node()
    clone.write_study("lab", light_study())
    client = clone.start(*ONLY_RUNS)
    said = clone.wait_until_said(r"gke: waiting: .*FailedCreate: .*")
    assert "exceeded quota: lab, requested: pods=1, used: pods=0, limited: pods=0" in said
    kube.core.delete_namespaced_resource_quota("lab", kube.namespace)
    assert client.wait(240) == 0, clone.said()
    assert outcomes(clone) == ["deadline"]


def test_a_restricted_namespace_takes_the_pods(clone, kube, add_node):
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.core.patch_namespace(kube.namespace, {"metadata": {"labels": level}})
    add_node()
    clone.write_study("lab", light_study())
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert outcomes(clone) == ["deadline"]


def test_an_admission_policy_is_quoted(clone, kube):
    reason = "no benchmarks on Fridays"
    with kube.policy("batch", "jobs", reason):
        clone.write_study("lab", light_study())
        assert clone.run(*ONLY_RUNS) == 1
    assert re.search(
        f"no result: lab-l4-x1 ddp defaults r1: cluster: create job: .*denied request: {reason}", clone.said()
    )
    assert kube.jobs() == []
    with kube.policy("", "pods", reason):
        client = clone.start(*ONLY_RUNS)
        clone.wait_until_said(f"gke: waiting: .*FailedCreate: .*denied request: {reason}")
        client.send_signal(signal.SIGINT)
        client.wait(20)


def test_a_queue_holding_a_job_is_quoted(clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study())
    assert clone.run("manifests", "--config", "study=lab") == 0, clone.said()
    # What Kueue does to a Job of its queues: suspended until its Workload is admitted, told in the Workload's events.

    (file,) = (clone.folder / "results/lab/manifests").glob("*.yaml")
    job = yaml.safe_load(file.read_text())
    job["spec"]["suspend"] = True
    kube.create(job)
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said(r"gke: waiting: .*suspended: the queue has not admitted it")
    name, now = job["metadata"]["name"], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    workload = {"kind": "Workload", "apiVersion": "kueue.x-k8s.io/v1beta1", "name": f"job-{name}-1a2b3"}
    kube.core.create_namespaced_event(
        kube.namespace,
        {
            "metadata": {"name": "pending"}, "involvedObject": workload | {"namespace": kube.namespace},
            "type": "Normal", "reason": "Pending", "firstTimestamp": now, "lastTimestamp": now, "count": 3,
            "message": "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu",
        },
    )  # fmt: skip
    clone.wait_until_said(r"gke: waiting: .*suspended: Pending: couldn't assign flavors .* \(3 times since")
    kube.batch.patch_namespaced_job(name, kube.namespace, {"spec": {"suspend": False}})
    assert client.wait(240) == 0, clone.said()
    assert outcomes(clone) == ["deadline"]


@pytest.mark.parametrize("status", ["429", "500"])
def test_a_broken_api_server_loses_nothing(status, api, clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study(repeats=2, seconds=10))
    api.fault = lambda method, path, body: status if method == "POST" else None
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig))
    clone.wait_until_said(f"create job: {status}: injected.*; every Job is kept")
    api.fault = lambda method, path, body: None
    clone.wait_until_said("gke: running: ")
    api.fault = lambda method, path, body: status
    clone.wait_until_said(f"list jobs: {status}: injected.*; every Job is kept")
    api.fault = lambda method, path, body: None
    assert client.wait(240) == 0, clone.said()
    assert "gke: the cluster or bucket answers again" in clone.said()
    assert outcomes(clone) == ["deadline"] * 2
    assert len(kube.jobs()) == len(kube.pods()) == 2


def test_expired_credentials_stop_only_a_start(api, cluster, clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study(seconds=10))
    api.fault = lambda method, path, body: "401"
    assert clone.run(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig)) == 1
    assert "credentials are missing or expired: gcloud container clusters get-credentials" in clone.said()
    assert kube.jobs() == []
    api.fault = lambda method, path, body: None
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig))
    clone.wait_until_said("gke: running: ")
    api.fault = lambda method, path, body: "401"
    clone.wait_until_said("401: injected.*expired.*; every Job is kept")
    # Somebody renews them, as `get-credentials` in another terminal does: the client reads the file again.
    api.kubeconfig.write_bytes(cluster.client_kubeconfig.read_bytes())
    assert client.wait(240) == 0, clone.said()
    assert "gke: the cluster or bucket answers again" in clone.said()
    assert outcomes(clone) == ["deadline"]


def test_a_plugins_token_is_renewed_in_time(cluster, clone, kube, tmp_path, add_node):
    if cluster.plane is None:
        pytest.skip("only our own control plane takes this token")
    plugin, calls = tmp_path / "plugin.sh", tmp_path / "calls"
    plugin.write_text(
        f"#!/bin/sh\necho call >> {calls}\n"
        'echo "{\\"apiVersion\\": \\"client.authentication.k8s.io/v1\\", \\"kind\\": \\"ExecCredential\\", '
        '\\"status\\": {\\"token\\": \\"admin-token\\", '
        '\\"expirationTimestamp\\": \\"$(date -u -d +2min +%Y-%m-%dT%H:%M:%SZ)\\"}}"\n'
    )
    plugin.chmod(0o755)
    kubeconfig = json.loads(cluster.kubeconfig.read_text())
    how = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    kubeconfig["users"] = [{"name": "test", "user": {"exec": how}}]
    (tmp_path / "plugin.kubeconfig").write_text(json.dumps(kubeconfig))
    clone.write_study("lab", light_study())
    # The client library renews 5 minutes ahead, so that a token of 2 minutes is renewed at every request.
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(tmp_path / "plugin.kubeconfig"))
    clone.wait_until_said("gke: waiting: ")
    before = len(calls.read_text().splitlines())
    until(lambda: len(calls.read_text().splitlines()) > before + 2, 60, "the plugin to be asked again")
    add_node()
    assert client.wait(240) == 0, clone.said()
    assert outcomes(clone) == ["deadline"]
