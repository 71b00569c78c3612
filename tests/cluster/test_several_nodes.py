"""Scenario 10: runs over several nodes, one pod of an Indexed Job each.

The pods run on this machine and share its loopback network. They find pod 0 by its name, which a private /etc/hosts
knows in place of the cluster's DNS.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml
from snakemake_executor_plugin_gke.manifest import render_manifest

from tests.cluster.lab.client import ROOT, check_files, light_study, study
from tests.cluster.lab.kube import Kube
from tests.cluster.lab.kubelet import Kubelet, Node
from tests.cluster.lab.plane import ControlPlane
from tests.cluster.lab.process import until
from tests.gke.specs import make_settings, make_spec

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")
PLATFORM = "lab-l4-x2-n2"
FATE_S = 60.0


@pytest.fixture
def add_two(add_node, kube, tmp_path):
    """Joins nodes whose pods find the first pod of every Job of this namespace."""
    if os.geteuid() != 0:
        pytest.skip("a private /etc/hosts needs root")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")

    def add(*names):
        return [add_node(name, hosts=hosts) for name in names]

    def resolve():
        name = until(kube.jobs, 60, "the Job")[0]["metadata"]["name"]
        hosts.write_text(f"127.0.0.1 localhost {name}-0.dtbench-nodes\n")

    add.resolve = resolve
    return add


def prepare(clone, content):
    clone.platform(PLATFORM, {**clone.entry(), "world_size": 2, "nodes": 2})
    clone.write_study("lab", content | {"platforms": [PLATFORM]})


def test_an_indexed_job_gets_one_pod_a_node(kube):
    spec = make_spec(name="l4-x8-n2", world_size=8, nodes=2)
    kube.core.create_namespaced_service(
        kube.namespace, yaml.safe_load((ROOT / "profiles" / "gke" / "service.yaml").read_text())
    )
    job = render_manifest(spec, make_settings(namespace=kube.namespace))
    kube.create(job)
    until(lambda: len(kube.pods()) == 2, 60, "one pod a node")
    pods = sorted(kube.pods(), key=lambda pod: pod["spec"]["hostname"])
    assert [pod["spec"]["hostname"] for pod in pods] == [f"{job['metadata']['name']}-{index}" for index in (0, 1)]
    for pod in pods:
        assert pod["spec"]["subdomain"] == "dtbench-nodes"
        assert "JOB_COMPLETION_INDEX" in {variable["name"] for variable in pod["spec"]["containers"][0]["env"]}


def phases(kube):
    return {p["metadata"]["name"].rpartition("-")[0][-1]: p["status"]["phase"] for p in kube.pods()}


def announced(bucket, number):
    return until(
        lambda: any(n.endswith(f"/pod-{number}.json") for n in bucket.objects()), 120, f"generation {number} of pods"
    )


def test_two_pods_measure_one_run(clone, kube, bucket, add_two):
    add_two("a", "b")
    prepare(clone, study(["ddp"]))
    client = clone.start(*ONLY_RUNS)
    add_two.resolve()
    assert client.wait(200) == 0, clone.said()
    ((_, record),) = clone.records("lab").items()
    assert record.outcome == "ok", record.diagnosis
    assert {f"try-1/result-{rank}.json" for rank in (0, 1)} <= {f.path for f in record.files}
    check_files(clone, "lab")
    assert {p["spec"]["nodeName"] for p in kube.pods()} == {f"{n}-{kube.namespace}" for n in "ab"}
    until(lambda: kube.jobs()[0]["status"].get("completionTime"), 60, "the Job to complete")
    done = kube.jobs()[0]["status"]
    assert done["completedIndexes"].startswith("0")
    assert not done.get("failed")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_node_ends_all_pods(lost, clone, kube, bucket, add_two):
    nodes = {kubelet.node.name: kubelet for kubelet in add_two("a", "b")}
    prepare(clone, light_study(seconds=45))
    client = clone.start(*ONLY_RUNS)
    add_two.resolve()
    announced(bucket, 1)
    until(lambda: phases(kube) == {"0": "Running", "1": "Running"}, 60, "both pods to run")
    clone.wait_until_said("gke: running: ")
    # A pod that has not met pod 0 yet loses nothing with it: it waits for the next one.
    until(
        lambda: any(p for k in nodes.values() for p in k.folder.rglob("node-1/run/try/launcher.log")),
        60,
        "both to meet",
    )
    first = {p["metadata"]["name"].rpartition("-")[0][-1]: p for p in kube.pods()}
    gone = first[str(lost)]["spec"]["nodeName"]
    nodes[gone].power_off()
    died_s = time.monotonic()
    other = first[str(1 - lost)]["metadata"]["name"]
    until(
        lambda: any(p["metadata"]["name"] == other and p["status"]["phase"] == "Failed" for p in kube.pods()),
        FATE_S, "the other pod to share its fate",
    )  # fmt: skip
    assert time.monotonic() - died_s < FATE_S
    kube.core.delete_node(gone)
    add_two("c")
    assert client.wait(240) == 0, clone.said()
    ((attempt, record),) = clone.records("lab").items()
    assert (record.outcome, record.pod) == ("deadline", 2)
    (job,) = kube.jobs()
    assert not job["status"].get("failed"), "a lost node must not be counted"
    if lost == 0:
        logs = {n.partition("/nodes/")[2]: bucket.get(n) for n in bucket.objects() if "/nodes/" in n}
        assert f"1/{other}/run/try/launcher.log" in logs, "only node 1 has its logs"
        beside = clone.folder / "results" / "lab" / attempt / "nodes"
        assert {name: (beside / name).read_bytes() for name in logs} == logs
    if lost == 1:
        (taken,) = (json.loads(bucket.get(name)) for name in bucket.records() if "/pods/1/" in name)
        assert first["1"]["metadata"]["name"] in taken["diagnosis"]["sentence"], "the lost node is named"


def test_a_node_that_never_comes_is_named(clone, kube, add_two):
    add_two("a")
    protocol = light_study()["protocol"] | {"startup_stall_s": 15.0, "deadline_s": 300.0}
    prepare(clone, light_study(protocol=protocol))
    client = clone.start(*ONLY_RUNS)
    add_two.resolve()
    clone.wait_until_said(r"gke: waiting: .*node 1 of 2: FailedScheduling: ")
    assert client.wait(120) == 0, clone.said()
    ((_, record),) = clone.records("lab").items()
    assert record.outcome == "rendezvous"
    assert "node 1" in record.diagnosis.sentence
    # Nobody needs the other node any more: the Job does not wait for one.
    until(lambda: kube.jobs()[0]["status"].get("completionTime"), 60, "the Job to complete")


def test_another_nodes_own_failure_is_the_outcome(clone, kube, add_two):
    add_two("a", "b")
    prepare(clone, light_study(seconds=120))
    client = clone.start(*ONLY_RUNS, SNAKEMAKE_GKE_BACKOFF_LIMIT="0")
    add_two.resolve()
    until(lambda: phases(kube) == {"0": "Running", "1": "Running"}, 60, "both pods to run")
    clone.wait_until_said("gke: running: ")
    (pod,) = (p for p in kube.pods() if "-a1-1-" in p["metadata"]["name"])
    # What the kernel does to a whole container that is over its memory limit.
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TEST_KUBELET_POD={pod['metadata']['uid']}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
    assert client.wait(120) == 0, clone.said()
    ((_, record),) = clone.records("lab").items()
    assert record.outcome not in ("preemption", "ok"), record.diagnosis
    assert record.diagnosis.sentence.startswith("Node 1: ")
    assert any("exit status 137" in e.text for e in record.diagnosis.evidence)


@pytest.mark.parametrize("network", ["rdma", "tcpx", "tcpxo"])
def test_a_known_network_is_a_valid_job(network, kube, tmp_path):
    shutil.copy(ROOT / "profiles/gke/networks" / f"{network}.yaml", tmp_path / f"{network}-x8-n2.yaml")
    spec = make_spec(name=f"{network}-x8-n2", world_size=8, nodes=2)
    kube.create(render_manifest(spec, make_settings(namespace=kube.namespace, pod_patches=str(tmp_path))), dry_run=True)


def test_the_client_reports_missing_gangs(clone, kube):
    prepare(clone, light_study())
    client = clone.start(*ONLY_RUNS, "--gke-gang")
    clone.wait_until_said("gke: the API server has dropped spec.scheduling of Jobs: its feature gates are off")
    client.send_signal(signal.SIGINT)
    client.wait(20)
    assert len(kube.jobs()) == 1


@pytest.fixture
def gang_plane(binary, tmp_path):
    """A control plane that schedules gangs."""
    plane = ControlPlane(binary, tmp_path / "plane", gates="GenericWorkload=true,WorkloadWithJob=true")
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def test_a_gang_waits_until_all_fit(gang_plane, binary, tmp_path):
    kube = Kube(str(gang_plane.kubeconfig), "gang")
    kube.make_namespace()
    until(kube.has_service_account, 30, "the namespace's service account")
    kubelets = []

    def join(name):
        node, place = Node(name), (gang_plane.certificate, gang_plane.key)
        kubelets.append(Kubelet(node, binary, gang_plane.kubeconfig, place, tmp_path / name))
        kubelets[-1].start({})
        until(lambda: kube.node_is_ready(name), 60, f"node {name}")

    def bound():
        return sorted(pod["spec"]["nodeName"] for pod in kube.pods() if pod["spec"].get("nodeName"))

    try:
        join("a")
        platform = {"world_size": 2, "nodes": 2, "machine_type": "g2-standard-12", "cpus": 1, "memory_gib": 8}
        jobs = [
            render_manifest(make_spec(repeat=n, **platform), make_settings(namespace="gang", gang=gang))
            for n, gang in ((1, True), (2, False))
        ]
        kube.create(jobs[0])
        until(lambda: len(kube.pods()) == 2, 60, "both pods of the gang")
        time.sleep(5)
        assert bound() == [], "one GPU is free, but a gang of two takes two or none"
        join("b")
        until(lambda: bound() == ["a", "b"], 60, "both pods to be placed")
        kube.delete_all()
        until(lambda: not kube.pods(), 60, "the gang to be gone")
        kubelets[1].power_off()
        kube.core.delete_node("b")
        kube.create(jobs[1])
        until(lambda: bound() == ["a"], 60, "without a gang one pod to take a GPU alone")
    finally:
        for kubelet in kubelets:
            kubelet.power_off()
