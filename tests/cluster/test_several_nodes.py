"""A run over several nodes, as far as a control plane without a pod network can show it."""

import pytest
import yaml
from snakemake_executor_plugin_gke.manifest import render_manifest

from tests.cluster.lab.client import ROOT
from tests.cluster.lab.process import until
from tests.gke.specs import make_settings, make_spec

pytestmark = pytest.mark.cluster


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
