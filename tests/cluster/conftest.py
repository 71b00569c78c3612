"""A cluster for the tests: our own control plane, or the one KUBECONFIG names; without either, skip and say how."""

import http.client
import os
import shutil
import ssl
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake_executor_plugin_gke.manifest import render_manifest

from harness.contract.spec import RunSpec
from tests.cluster.lab.bucket import NAME, FaultyBucket
from tests.cluster.lab.client import IMAGE, ROOT, Clone
from tests.cluster.lab.kube import Kube
from tests.cluster.lab.kubelet import Kubelet, Node
from tests.cluster.lab.plane import ControlPlane, write_kubeconfig
from tests.cluster.lab.process import until
from tests.cluster.lab.relay import Relay
from tests.gke.specs import make_settings, make_spec

HERE = Path(__file__).parent
HOW = (
    "no Kubernetes: install Go to build the test control plane (tests/cluster/build.sh; 9 to 14 minutes once), "
    "or point KUBECONFIG at a cluster of your own, for example kind's"
)


@pytest.fixture(scope="session")
def binary() -> Path:
    """The control plane's one binary, built on first use."""
    if shutil.which("go") is None:
        pytest.skip(HOW)
    built = subprocess.run([HERE / "build.sh"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.strip())


class Cluster:
    """What a test needs of a cluster: where it is, and its control plane when that is ours to stop."""

    def __init__(self, kubeconfig: Path, plane: ControlPlane | None, binary: Path, folder: Path) -> None:
        self.kubeconfig, self.plane, self.binary, self.folder = kubeconfig, plane, binary, folder
        self.client_kubeconfig = plane.client_kubeconfig if plane else kubeconfig
        """That of a user who has the Role of profiles/gke/role.yaml and nothing else."""

    def certificate(self) -> tuple[Path, Path]:
        """Certificate and key of the kubelets."""
        certificate, key = self.folder / "node.crt", self.folder / "node.key"
        if not key.exists():
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=node",
                 "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                check=True, capture_output=True,
            )  # fmt: skip
        return certificate, key


@pytest.fixture(scope="session")
def cluster(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests; each has a namespace and nodes of its own."""
    folder = tmp_path_factory.mktemp("cluster")
    if given := os.environ.get("KUBECONFIG"):
        yield Cluster(Path(given), None, binary, folder)
        return
    plane = ControlPlane(binary, folder)
    try:
        plane.start()
        yield Cluster(plane.kubeconfig, plane, binary, folder)
    finally:
        plane.stop()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[FaultyBucket]:
    """An empty bucket that can be told to fail."""
    bucket = FaultyBucket(tmp_path / "bucket")
    try:
        bucket.start()
        yield bucket
    finally:
        bucket.stop()


@pytest.fixture
def kube(cluster: Cluster) -> Iterator[Kube]:
    """A namespace of this test's own."""
    kube = Kube(str(cluster.kubeconfig), f"lab-{uuid.uuid4().hex[:8]}")
    kube.make_namespace()
    kube.allow("client", yaml.safe_load((ROOT / "profiles" / "gke" / "role.yaml").read_text()))
    until(kube.has_service_account, 30, "the namespace's service account")
    yield kube
    kube.delete_all()
    if not kube.is_leaving():  # a test may have deleted it
        kube.core.delete_namespace(kube.namespace)


AddNode = Callable[..., Kubelet]


@pytest.fixture
def add_node(cluster: Cluster, kube: Kube, bucket: FaultyBucket, tmp_path: Path) -> Iterator[AddNode]:
    """Joins nodes to the cluster; they leave it when the test ends."""
    kubelets: list[Kubelet] = []

    def add(
        name: str = "l4", environment: dict[str, str] | None = None, hosts: Path | None = None, **keys: object
    ) -> Kubelet:
        node = Node(f"{name}-{kube.namespace}", **keys)  # type: ignore[arg-type]
        kubelet = Kubelet(node, cluster.binary, cluster.kubeconfig, cluster.certificate(), tmp_path / node.name)
        kubelets.append(kubelet)
        kubelet.start({"STORAGE_EMULATOR_HOST": bucket.endpoint, "OMP_NUM_THREADS": "1"} | (environment or {}), hosts)
        until(lambda: kube.node_is_ready(node.name), 60, f"node {node.name}; see {kubelet.folder}/kubelet.log")
        return kubelet

    yield add
    for kubelet in kubelets:
        kubelet.power_off()
        try:
            kube.core.delete_node(kubelet.node.name)
        except Exception as error:  # a test may have deleted it
            assert "NotFound" in str(error), error


@pytest.fixture
def new_clone(cluster: Cluster, kube: Kube, bucket: FaultyBucket, tmp_path: Path) -> Iterator[Callable[..., Clone]]:
    """Makes working copies whose clients use this test's namespace and bucket."""
    clones: list[Clone] = []

    def new(**settings: str) -> Clone:
        environment = {
            "KUBECONFIG": str(cluster.client_kubeconfig),
            "STORAGE_EMULATOR_HOST": bucket.endpoint,
            "SNAKEMAKE_GKE_NAMESPACE": kube.namespace,
            "SNAKEMAKE_GKE_IMAGE": IMAGE,
            "SNAKEMAKE_GKE_BUCKET": f"gs://{NAME}/lab",
            "SNAKEMAKE_GKE_POLL_INTERVAL": "1",
            "SNAKEMAKE_GKE_STATUS_INTERVAL": "2",
            # As if access were never late: a bucket that refuses is told at once.
            "SNAKEMAKE_GKE_CREDENTIALS_PATIENCE": "3",
        }
        clones.append(Clone(tmp_path / f"clone{len(clones) + 1}", environment | settings))
        return clones[-1]

    yield new
    for clone in clones:
        clone.close()


@pytest.fixture
def api(cluster: Cluster, tmp_path: Path) -> Iterator[Relay]:
    """The API server behind a relay that can be told to fail, and a kubeconfig that leads to it."""
    if cluster.plane is None:
        pytest.skip("only our own control plane takes a token over a relay")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address = cluster.plane.server.removeprefix("https://")
    relay = Relay(lambda: http.client.HTTPSConnection(address, timeout=60, context=context))
    relay.kubeconfig = tmp_path / "relay.kubeconfig"
    write_kubeconfig(relay.kubeconfig, relay.endpoint, cluster.folder / "certs/apiserver.crt", "client-token")
    relay.start()
    yield relay
    relay.stop()


@pytest.fixture
def clone(new_clone: Callable[..., Clone]) -> Clone:
    """One working copy."""
    return new_clone()


@pytest.fixture
def lab_spec() -> Callable[..., RunSpec]:
    """Makes specs."""
    return make_spec


@pytest.fixture
def render(kube: Kube) -> Callable[[RunSpec], dict[str, Any]]:
    """Renders the Job of a spec for this test's namespace."""
    return lambda spec: render_manifest(spec, make_settings(namespace=kube.namespace))
