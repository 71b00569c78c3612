"""`dtbench gke up | status | down` against the real API server with GKE's ComputeClass, and an emulated bucket."""

import json
import uuid
from pathlib import Path

import pytest
import yaml
from dtbench import cli
from dtbench.cloud.kube import Cluster
from dtbench.cloud.objects import Setup, compute_class
from dtbench.study.platforms import load_platforms
from kubernetes import client, config

from harness.contract.errors import HarnessError
from tests.cluster.lab.client import ROOT
from tests.cluster.lab.process import until

pytestmark = pytest.mark.cluster
PLATFORMS = load_platforms(ROOT / "config" / "platforms.yaml")
BOUGHT = [entry for entry in PLATFORMS.values() if entry.gke_accelerator]


@pytest.fixture(scope="module")
def classes(cluster):
    """The cluster with GKE's ComputeClass installed."""
    api = client.ApiextensionsV1Api(config.new_client_from_config(str(cluster.kubeconfig)))
    crd = yaml.safe_load((Path(__file__).parent / "computeclass.yaml").read_text())
    api.create_custom_resource_definition(crd)

    def served() -> bool:
        found = api.read_custom_resource_definition(crd["metadata"]["name"])
        return any(c.type == "Established" and c.status == "True" for c in found.status.conditions or ())

    until(served, 30, "the ComputeClass to be served")
    yield cluster
    api.delete_custom_resource_definition(crd["metadata"]["name"])


@pytest.fixture
def gke(classes, bucket, monkeypatch, capsys):
    """Runs `dtbench gke` for a namespace and a bucket of this test's own; returns status and lines."""
    name = f"setup-{uuid.uuid4().hex[:8]}"
    policy: dict[str, object] = {"version": 3, "bindings": []}
    ask = bucket.ask

    asked: dict[str, object] = {}

    def recorded(method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """The emulator forgets labels and has no IAM: Google's library finds here what it wrote."""
        if "/iam" in path:
            policy.update(json.loads(body) if method == "PUT" else {})
            return 200, {"Content-Type": "application/json"}, json.dumps(policy).encode()
        status, answered, text = ask(method, path, body, headers)
        if method == "POST" and path.startswith("/storage/v1/b?"):
            asked.update(json.loads(body))
        if method == "GET" and path.startswith(f"/storage/v1/b/{name}?") and status == 200:
            text = json.dumps(json.loads(text) | {"labels": asked.get("labels", {})}).encode()
        return status, answered, text

    bucket.ask = recorded
    settings = {
        "KUBECONFIG": str(classes.kubeconfig),
        "STORAGE_EMULATOR_HOST": bucket.endpoint,
        "SNAKEMAKE_GKE_NAMESPACE": name,
        "SNAKEMAKE_GKE_BUCKET": f"gs://{name}/results",
        "SNAKEMAKE_GKE_SERVICE_ACCOUNT": "bench",
    }
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(ROOT)

    def run(*arguments: str) -> tuple[int, list[str]]:
        more = ["--location", "us-central1", "--project", "bench-lab", "--client", "me@example.com"]
        status = cli.main(["gke", *arguments, *more])
        said = capsys.readouterr()
        return status, [line for line in (said.out + said.err).splitlines() if line]

    run.name, run.policy, run.bucket, run.kubeconfig = name, policy, asked, str(classes.kubeconfig)
    yield run
    run("down")


def test_up_twice_changes_nothing(gke):
    status, said = gke("up", "--dry-run")
    assert status == 0, said
    assert all("would be" in line for line in said), said
    status, said = gke("up")
    assert status == 0, said
    assert all(": made" in line or "granted to principal" in line for line in said), said
    assert len([line for line in said if line.startswith("ComputeClass")]) == len(BOUGHT)
    assert gke.bucket["versioning"] == {"enabled": True}
    assert gke.bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    (binding,) = gke.policy["bindings"]
    assert binding["members"][0].endswith(f"bench-lab.svc.id.goog/subject/ns/{gke.name}/sa/bench")
    before = Cluster().made(gke.name)
    status, said = gke("up")
    assert status == 0, said
    assert all("unchanged" in line or "granted already" in line for line in said), said
    assert Cluster().made(gke.name) == before
    assert all(": made" in line for line in gke("status")[1][:-1])


def test_down_removes_all_that_up_made(gke):
    gke("up")
    assert Cluster().made(gke.name)
    status, said = gke("down", "--dry-run")
    assert status == 0, said
    assert Cluster().made(gke.name)
    status, said = gke("down")
    assert status == 0, said
    until(lambda: not Cluster().made(gke.name), 30, "everything to be gone")
    assert f"bucket {gke.name}: removed" in said


def test_down_leaves_what_it_did_not_make(gke, bucket):
    api = config.new_client_from_config(gke.kubeconfig)
    core, custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
    other = {
        "apiVersion": "cloud.google.com/v1", "kind": "ComputeClass", "metadata": {"name": BOUGHT[0].compute_class},
        "spec": {"whenUnsatisfiable": "ScaleUpAnyway"},
    }  # fmt: skip
    custom.create_cluster_custom_object("cloud.google.com", "v1", "computeclasses", other)
    try:
        said = gke("up")[1]
        assert f"ComputeClass {BOUGHT[0].compute_class}: exists and was not made by dtbench: left as it is" in said
        core.create_namespaced_config_map(gke.name, {"metadata": {"name": "mine"}})
        said = gke("down")[1]
        assert any("holds what dtbench did not make (ConfigMap mine)" in line for line in said), said
        assert core.read_namespaced_config_map("mine", gke.name)
        left = custom.get_cluster_custom_object("cloud.google.com", "v1", "computeclasses", BOUGHT[0].compute_class)
        assert left["spec"]["whenUnsatisfiable"] == "ScaleUpAnyway"
    finally:
        custom.delete_cluster_custom_object("cloud.google.com", "v1", "computeclasses", BOUGHT[0].compute_class)
        core.delete_namespace(gke.name)


def test_down_waits_for_unfinished_jobs(gke):
    gke("up")
    batch = client.BatchV1Api(config.new_client_from_config(gke.kubeconfig))
    labels = {"app.kubernetes.io/managed-by": "snakemake-executor-plugin-gke"}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    batch.create_namespaced_job(
        gke.name, {"metadata": {"name": "run", "labels": labels}, "spec": {"template": {"spec": pod}}}
    )
    status, said = gke("down")
    assert status == 64
    assert f"found 1 unfinished Jobs (run in namespace {gke.name} ...)" in said[-1]
    batch.delete_namespaced_job("run", gke.name, propagation_policy="Foreground")
    until(lambda: not Cluster().jobs(gke.name), 30, "the Job to be gone")


@pytest.mark.parametrize("entry", BOUGHT, ids=lambda entry: entry.name)
def test_the_api_server_takes_every_class(classes, monkeypatch, entry):
    monkeypatch.setenv("KUBECONFIG", str(classes.kubeconfig))
    setup = Setup(namespace="default", account="", zones=("us-central1-a",), reservation="mine", node_account="n@p.iam")
    wanted = compute_class(entry, setup)
    assert Cluster().make(wanted, dry_run=True) == "would be made"
    ways = [(p["spot"], "reservations" in p, "flexStart" in p) for p in wanted["spec"]["priorities"]]
    spot, reserved, flex, on_demand = (True, False, False), (False, True, False), (False, False, True), (False,) * 3
    assert ways == [reserved, spot, flex, on_demand]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"whenUnsatisfiable": "Wait"}, "Unsupported value"),
        ({"autoscalingPolicy": {"consolidationDelayMinutes": 0}}, "should be greater than or equal to 1"),
        ({"priorities": [{"machineTyp": "a2-highgpu-4g"}]}, "machineTyp"),
        ({"priorities": [{"spot": True, "flexStart": {"enabled": True}}]}, "flexStart and spot exclude each other"),
        ({"priorities": [{"reservations": {"affinity": "Specific"}}]}, "names reservations"),
    ],
)
def test_the_api_server_refuses_wrong_classes(classes, monkeypatch, change, said):
    monkeypatch.setenv("KUBECONFIG", str(classes.kubeconfig))
    wanted = compute_class(PLATFORMS["l4-x4"], Setup(namespace="default", account=""))
    wanted["spec"] |= change
    with pytest.raises(HarnessError, match=said):
        Cluster().make(wanted, dry_run=True)
