"""The Job as a pure function of spec and settings; that a real API server takes it is tests/cluster's to show."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from snakemake_executor_plugin_gke.manifest import (
    ANNOTATIONS_LIMIT_BYTES,
    job_name,
    label_value,
    labels_of,
    place_of,
    render_manifest,
    selector,
    spec_of,
    write_manifests,
)
from snakemake_executor_plugin_gke.settings import check_settings
from snakemake_interface_common.exceptions import WorkflowError

from harness.contract.errors import SpecError
from harness.contract.exitcodes import CONFIG, DELIVERY, PREEMPTED
from tests.gke.specs import make_settings, make_spec

ROOT = Path(__file__).resolve().parents[2]
LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")
NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
STUDY = r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"


def pod_of(job):
    return job["spec"]["template"]["spec"]


def test_the_pod_requests_its_platforms_gpus():
    pod = pod_of(render_manifest(make_spec(), make_settings()))
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "cloud.google.com/gke-spot": "true",
        "node.kubernetes.io/instance-type": "g2-standard-48",
    }
    assert [t["key"] for t in pod["tolerations"]] == ["nvidia.com/gpu", "cloud.google.com/gke-spot"]
    resources = pod["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "4"
    assert resources["requests"]["cpu"] == "40"
    assert "cpu" not in resources["limits"], "a CPU limit throttles the data path"
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "163840Mi"
    shm = next(v for v in pod["volumes"] if v["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "40960Mi"}


def test_a_compute_class_is_selected_alone():
    pod = pod_of(render_manifest(make_spec(zone="us-central1-a"), make_settings(compute_classes=True)))
    assert pod["nodeSelector"] == {"cloud.google.com/compute-class": "dtbench-l4-x4"}
    by_hand = pod_of(render_manifest(make_spec(zone="us-central1-a"), make_settings()))
    assert by_hand["nodeSelector"]["topology.kubernetes.io/zone"] == "us-central1-a"
    names = {make_spec(name=name).platform.compute_class for name in ("l4-x4", "l4_x4", "l4.x4", 63 * "l", 62 * "l")}
    assert len(names) == 5
    assert all(len(name) <= 63 for name in names)


def test_a_pod_takes_its_whole_host():
    spec = make_spec(name="h100-x4", machine_type="a3-highgpu-8g", gke_accelerator="nvidia-h100-80gb")
    limits = pod_of(render_manifest(spec, make_settings()))["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8"
    with pytest.raises(SpecError, match="16 ranks a node, but one a3-highgpu-8g has 8 GPUs: give it more nodes"):
        render_manifest(make_spec(world_size=16, machine_type="a3-highgpu-8g"), make_settings())


def test_a_cpu_platform_requests_what_its_ranks_need():
    spec = make_spec(device="cpu", gke_accelerator=None, machine_type=None, spot=False, cpus=None, memory_gib=None)
    pod = pod_of(render_manifest(spec, make_settings()))
    assert pod["nodeSelector"] == {}
    assert "tolerations" not in pod
    resources = pod["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "4", "memory": "10240Mi", "ephemeral-storage": "10Gi"}
    assert resources["limits"] == {"memory": "10240Mi", "ephemeral-storage": "100Gi"}


@pytest.mark.parametrize("name", ["gke_accelerator", "machine_type"])
def test_a_gpu_platform_needs_gke_fields(name):
    with pytest.raises(SpecError, match=f"platform l4-x4: {name} not set.*ask GKE for no GPU"):
        render_manifest(make_spec(**{name: None}), make_settings())


def test_secrets_enter_a_job_by_reference_only():
    container = pod_of(render_manifest(make_spec(), make_settings(secret="hub")))["containers"][0]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert "envFrom" not in pod_of(render_manifest(make_spec(), make_settings()))["containers"][0]


def test_the_pod_knows_its_grace_and_its_patience():
    job = render_manifest(make_spec(), make_settings(grace_period=60, credentials_patience=7))
    environment = {e["name"]: e.get("value") for e in pod_of(job)["containers"][0]["env"]}
    assert environment["HARNESS_GRACE_S"] == "60"
    assert environment["HARNESS_CREDENTIALS_PATIENCE_S"] == "7"


def test_only_hopeless_ends_fail_at_once():
    job = render_manifest(make_spec(), make_settings(backoff_limit=3))
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert [r["action"] for r in rules] == ["Ignore", "Ignore", "FailJob"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert rules[1]["onExitCodes"]["values"] == [PREEMPTED]
    assert rules[2]["onExitCodes"]["values"] == [CONFIG, DELIVERY]
    assert job["spec"]["backoffLimit"] == 3
    assert "activeDeadlineSeconds" not in job["spec"], "it would count the hours spent waiting for a node"
    assert pod_of(job)["restartPolicy"] == "Never"


def test_the_container_is_locked_down():
    pod = pod_of(render_manifest(make_spec(), make_settings()))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    container = pod["containers"][0]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {m["mountPath"] for m in container["volumeMounts"]}
    assert {"/tmp", "/out", "/dev/shm"} <= mounts, "what must be writable on a read-only root"


def test_several_nodes_are_an_indexed_job():
    spec = make_spec(name="l4-x8-n2", world_size=8, nodes=2, machine_type="g2-standard-48")
    job = render_manifest(spec, make_settings())
    assert {key: job["spec"][key] for key in ("completions", "parallelism", "completionMode")} == {
        "completions": 2, "parallelism": 2, "completionMode": "Indexed",
    }  # fmt: skip
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    pod, name = pod_of(job), job["metadata"]["name"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4", "a pod is one node"
    service = yaml.safe_load((ROOT / "profiles/gke/service.yaml").read_text())
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    variables = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}
    assert variables["HARNESS_RENDEZVOUS"] == f"{name}-0.{service['metadata']['name']}"
    assert len(f"{name}-1") <= 63
    assert "completionMode" not in render_manifest(make_spec(), make_settings())["spec"]


def test_the_spec_travels_in_the_job_and_back():
    hostile = 'it\'s "quoted" <&> {{ braces }} # \\ \u00fc\n- list'
    spec = structs.replace(make_spec(), environment={hostile: hostile})
    job = render_manifest(spec, make_settings())
    assert spec_of(job) == spec.to_json()
    source = next(v for v in pod_of(job)["volumes"] if v["name"] == "spec")["downwardAPI"]["items"][0]
    assert source == {"path": "spec.json", "fieldRef": {"fieldPath": "metadata.annotations['dtbench/spec']"}}
    assert pod_of(job)["containers"][0]["command"][:6] == ["python", "-m", "harness", "run", "/spec/spec.json", "/out"]


def test_a_spec_too_large_is_refused():
    spec = make_spec()
    spec.model.config["padding"] = "x" * ANNOTATIONS_LIMIT_BYTES
    with pytest.raises(SpecError, match="a Job can carry 131072: shorten"):
        render_manifest(spec, make_settings())


def test_optional_settings_appear_only_when_set():
    text = json.dumps(render_manifest(make_spec(), make_settings()))
    assert not re.search("serviceAccountName|priorityClassName|kueue", text)
    job = render_manifest(make_spec(), make_settings(service_account="bench", priority_class="low", queue="gpus"))
    assert pod_of(job)["serviceAccountName"] == "bench"
    assert pod_of(job)["priorityClassName"] == "low"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"


@given(st.from_regex(STUDY, fullmatch=True), st.integers(1, 10**6), st.integers(1, 10**6))
def test_names_and_labels_are_legal_for_any_study(study, repeat, attempt):
    spec = make_spec(study=study, repeat=repeat, attempt=attempt)
    assert NAME.match(spec.job_name()), spec.job_name()
    assert all(LABEL_VALUE.match(v) for v in labels_of(spec).values())
    assert LABEL_VALUE.match(selector({study}).split(" in (")[1].rstrip(")"))


@given(st.text(max_size=120), st.text(max_size=120))
def test_different_texts_keep_different_label_values(one, other):
    assert (label_value(one) == label_value(other)) == (one == other)


def test_attempts_are_different_jobs_in_different_places():
    first, second = make_spec(attempt=1), make_spec(attempt=2)
    assert first.job_name() != second.job_name()
    assert place_of(first) == f"quick/{first.path()}"
    assert place_of(first) != place_of(second)
    for bucket in ("gs://b/p", "gs://b/p/"):
        command = pod_of(render_manifest(first, make_settings(bucket=bucket)))["containers"][0]["command"]
        assert command[6:] == ["--upload", f"gs://b/p/{place_of(first)}"]


def test_a_frontier_search_is_its_own_job():
    options = ["--over", "micro_batch", "--limit", "64"]
    job = render_manifest(make_spec(), make_settings(), options)
    place = place_of(make_spec(), options)
    command = pod_of(job)["containers"][0]["command"]
    assert command[3:] == ["frontier", "/spec/spec.json", "/out", *options, "--upload", f"gs://bench/prefix/{place}"]
    assert place.startswith("quick/frontier/l4-x4/ddp/defaults/micro_batch-")
    name = job["metadata"]["name"]
    assert NAME.match(name)
    assert name not in (make_spec().job_name(), job_name(make_spec(), ["--over", "micro_batch", "--limit", "32"]))
    label = "dtbench/spec-hash"
    assert job["metadata"]["labels"][label] != labels_of(make_spec())[label]


def test_manifests_of_runs_no_longer_missing_are_removed(tmp_path: Path):
    one, two = make_spec(repeat=1), make_spec(repeat=2)
    assert len(write_manifests([one, two], make_settings(), tmp_path)) == 2
    (tmp_path / "README.md").write_text("kept")
    assert [p.name for p in write_manifests([two], make_settings(), tmp_path)] == [f"{two.job_name()}.yaml"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["README.md", f"{two.job_name()}.yaml"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": ""}, "--gke-image is not set"),
        ({"image": "repo/harness:latest"}, "a tag can change"),
        ({"image": "repo/harness@sha256:123"}, "64 hexadecimal digits"),
        ({"bucket": ""}, "--gke-bucket is not set"),
        ({"bucket": "my-bucket"}, "expected gs://BUCKET"),
        ({"bucket": "gs://"}, "expected gs://BUCKET"),
        ({"poll_interval": 0}, "--gke-poll-interval: found 0, expected 1 or more"),
        ({"backoff_limit": -1}, "--gke-backoff-limit: found -1"),
        ({"on_exit": "explode"}, "expected detach or cancel"),
    ],
)
def test_settings_without_a_valid_job_are_refused(changes, words):
    with pytest.raises(WorkflowError, match=re.escape(words)):
        check_settings(make_settings(**changes))


def test_the_plugin_imports_cloud_libraries_lazily():
    code = (
        "import sys\n"
        "from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry\n"
        "assert ExecutorPluginRegistry().is_installed('gke')\n"
        "plugin = ExecutorPluginRegistry().get_plugin('gke')\n"
        "assert all(f['help'] for f in plugin.get_settings_info())\n"
        "assert not ({'kubernetes', 'google.cloud.storage', 'torch'} & set(sys.modules)), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
