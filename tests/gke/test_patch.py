"""A platform's pod patch: merged as Kubernetes merges, checked, noticed when it changes."""

import re
import shutil
from pathlib import Path

import pytest
from snakemake_executor_plugin_gke.adopt import differences
from snakemake_executor_plugin_gke.manifest import render_manifest
from snakemake_executor_plugin_gke.patch import merge, read_patch
from snakemake_executor_plugin_gke.settings import check_settings
from snakemake_interface_common.exceptions import WorkflowError

from harness.contract.errors import SpecError
from tests.gke.specs import make_settings, make_spec

NETWORKS = Path(__file__).resolve().parents[2] / "profiles" / "gke" / "networks"


@pytest.fixture
def write(tmp_path):
    """Writes the patch of the tests' platform; returns its folder."""

    def to(text):
        read_patch.cache_clear()
        (tmp_path / "l4-x4.yaml").write_text(text)
        return str(tmp_path)

    return to


def test_named_lists_merge_and_others_are_replaced():
    base = {"containers": [{"name": "harness", "env": [{"name": "A", "value": "1"}], "command": ["x", "y"]}], "a": 1}
    change = {
        "containers": [
            {"name": "harness", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}], "command": ["z"]},
            {"name": "daemon"},
        ],
        "a": None,
    }
    env = [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]
    assert merge(base, change) == {
        "containers": [{"name": "harness", "env": env, "command": ["z"]}, {"name": "daemon"}]
    }
    assert base["containers"][0]["command"] == ["x", "y"], "the base stays as it is"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spec: {container: []}", "spec.container: no such field; expected one of"),
        (
            "spec: {containers: [{image: x}]}",
            "spec.containers[0]: found no name; entries of this list are merged by name",
        ),
        ("spec: {hostNetwork: 'yes'}", "spec.hostNetwork: found 'yes', expected bool"),
        ("metadata: {annotations: {a: 1}}", "metadata.annotations.a: found 1, expected str: quote it"),
        ("spec: {volumes: {name: x}}", "spec.volumes: found"),
        ("- spec", "the file: found"),
        ("spec: {$patch: replace}", "spec.$patch: no such field"),
        ("{", "cannot be read"),
    ],
)
def test_a_wrong_patch_is_refused_by_field(text, words, write):
    with pytest.raises(SpecError, match=re.escape(words)):
        render_manifest(make_spec(), make_settings(pod_patches=write(text)))


def test_a_patch_changes_its_platform_only(write):
    settings = make_settings(pod_patches=write("metadata: {annotations: {fast: net}}"))
    annotations = render_manifest(make_spec(), settings)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["fast"] == "net"
    assert "dtbench/spec" in annotations
    other = make_spec(name="other")
    assert "fast" not in render_manifest(other, settings)["spec"]["template"]["metadata"]["annotations"]


def test_a_changed_patch_is_noticed(write):
    job = render_manifest(make_spec(), make_settings(pod_patches=write("metadata: {annotations: {a: b}}")))
    settings = make_settings(pod_patches=write("metadata: {annotations: {a: c}}"))
    assert list(differences(job, settings, "l4-x4")) == ["pod_patch"]


@pytest.mark.parametrize("network", ["rdma", "tcpx", "tcpxo"])
def test_the_known_networks_merge(network, tmp_path):
    read_patch.cache_clear()
    shutil.copy(NETWORKS / f"{network}.yaml", tmp_path / "h100-x16-n2.yaml")
    spec = make_spec(name="h100-x16-n2", world_size=16, nodes=2, machine_type="a3-highgpu-8g")
    plain, patched = (render_manifest(spec, make_settings(pod_patches=p)) for p in ("", str(tmp_path)))
    pod, before = patched["spec"]["template"]["spec"], plain["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == before["containers"][0]["command"]
    mounts = {m["name"] for c in [container, *pod.get("initContainers", [])] for m in c["volumeMounts"]}
    assert mounts <= {v["name"] for v in pod["volumes"]}
    assert {v["name"] for v in before["volumes"]} < {v["name"] for v in pod["volumes"]}
    # What does not end by itself would keep the Job from completing.
    assert all(c["restartPolicy"] == "Always" for c in pod.get("initContainers", []))


def test_a_missing_patch_folder_is_refused():
    with pytest.raises(WorkflowError, match="found no folder nowhere"):
        check_settings(make_settings(pod_patches="nowhere"))


def test_topology_and_gang_apply_to_several_nodes_only():
    settings = make_settings(queue="gpus", topology="cloud.google.com/gce-topology-block", gang=True)
    job = render_manifest(make_spec(world_size=8, nodes=2), settings)
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-required-topology"] == "cloud.google.com/gce-topology-block"
    assert job["spec"]["scheduling"] == {"schedulingPolicy": {"gang": {"minCount": 2}}}
    assert job["spec"]["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    alone = render_manifest(make_spec(), settings)
    assert not {"scheduling", "successPolicy"} & set(alone["spec"])
    with pytest.raises(WorkflowError, match="--gke-topology needs --gke-queue"):
        check_settings(make_settings(topology="block"))
