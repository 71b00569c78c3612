"""Scenario 10: runs over several nodes, one pod of an Indexed Job each.

The pods run on this machine and share its loopback network. They find pod 0 by its name, which a private /etc/hosts
knows in place of the cluster's DNS.
"""

import os
import re
import time

import pytest
import yaml
from snakemake_executor_plugin_gke.manifest import render_manifest

from tests.cluster.lab.client import ROOT, check_files, light_study, study
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


def test_two_pods_measure_one_run(clone, kube, bucket, add_two):
    add_two("a", "b")
    prepare(clone, study(["ddp"]))
    client = clone.start(*ONLY_RUNS)
    add_two.resolve()
    assert client.wait(200) == 0, clone.said()
    ((_, record),) = clone.records("lab").items()
    assert record.outcome == "ok", record.diagnosis
    print(record.environment)
    check_files(clone, "lab")
    assert {p["spec"]["nodeName"] for p in kube.pods()} == {f"{n}-{kube.namespace}" for n in "ab"}
    print([(p["metadata"]["name"], p["status"]["phase"]) for p in kube.pods()], kube.jobs()[0]["status"])
    print([f.path for f in record.files])
