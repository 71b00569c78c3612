"""The control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback."""

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from tests.cluster.lab.process import free_port, start, stop, until


class ControlPlane:
    """One cluster, everything it writes below one folder; nodes are joined to it by lab.kubelet."""

    def __init__(self, binary: Path, folder: Path, *, audit: bool = False, gates: str = "") -> None:
        self.binary, self.folder, self._audit = binary, folder, audit
        self._gates = [f"--feature-gates={gates}"] if gates else []
        self.kubeconfig, self.client_kubeconfig = folder / "kubeconfig", folder / "client.kubeconfig"
        self.certificate, self.key = folder / "node.crt", folder / "node.key"
        self._ports = {name: free_port() for name in ("etcd", "peer", "secure")}
        self.server = f"https://127.0.0.1:{self._ports['secure']}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all four; returns when the API server is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_credentials()
        etcd, peer = (f"http://127.0.0.1:{self._ports[p]}" for p in ("etcd", "peer"))
        self._start(
            "etcd", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        )  # fmt: skip
        self.start_apiserver()
        for name, user in (("kubeconfig", "admin"), ("kcm.kubeconfig", "kcm"), ("scheduler.kubeconfig", "scheduler")):
            write_kubeconfig(self.folder / name, self.server, self.folder / "certs/apiserver.crt", f"{user}-token")
        # Whoever runs a client: has nothing but what a test's namespace binds to it.
        write_kubeconfig(self.client_kubeconfig, self.server, self.folder / "certs/apiserver.crt", "client-token")
        self._start(
            "controller-manager", f"--kubeconfig={self.folder}/kcm.kubeconfig",
            f"--service-account-private-key-file={self.folder}/sa.key", "--leader-elect=false", "--secure-port=0",
            "--node-monitor-period=2s", "--node-monitor-grace-period=10s", "--concurrent-job-syncs=20",
            # Without it RBAC forbids the Job controller to create pods.
            "--use-service-account-credentials=true", "--kube-api-qps=200", "--kube-api-burst=400",
            *self._gates,
        )  # fmt: skip
        self._start(
            "scheduler", f"--kubeconfig={self.folder}/scheduler.kubeconfig", "--leader-elect=false", "--secure-port=0",
            *self._gates,
        )  # fmt: skip

    @property
    def audit_log(self) -> Path:
        """One JSON line a request, with the user agent, when started with `audit`."""
        return self.folder / "audit.jsonl"

    def start_apiserver(self) -> None:
        """Start the API server on the same port and data; returns when it is ready."""
        audit = []
        if self._audit:
            policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
            (self.folder / "audit.yaml").write_text(json.dumps(policy | {"rules": [{"level": "Metadata"}]}))
            audit = [f"--audit-policy-file={self.folder}/audit.yaml", f"--audit-log-path={self.audit_log}"]
        self._start(
            "apiserver", f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}", "--bind-address=127.0.0.1",
            # The API server refuses to publish a loopback address as its own endpoint.
            "--endpoint-reconciler-type=none", f"--secure-port={self._ports['secure']}",
            f"--cert-dir={self.folder}/certs", f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/sa.key",
            f"--service-account-signing-key-file={self.folder}/sa.key",
            # A pod of a lost node is given up after seconds here, after 5 minutes in a real cluster.
            "--default-not-ready-toleration-seconds=5", "--default-unreachable-toleration-seconds=5",
            # Gangs are made of objects of the second group.
            *(["--runtime-config=api/all=true"] if self._gates else []), *self._gates, *audit,
        )  # fmt: skip
        until(self._ready, 90, f"the API server; see {self.folder}/apiserver.log", every_s=0.25)

    def stop_apiserver(self) -> None:
        """Kill the API server at once: asked to stop, it would drain watches for a minute."""
        process = self._processes.pop("apiserver")
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop all."""
        for process in reversed(list(self._processes.values())):
            stop(process)

    def _ready(self) -> bool:
        for role, process in self._processes.items():
            assert process.poll() is None, f"{role} ended with {process.returncode}; see {self.folder}/{role}.log"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(f"{self.server}/readyz", headers={"Authorization": "Bearer admin-token"})
        try:
            with urllib.request.urlopen(request, context=context, timeout=2):
                return True
        except OSError:
            return False

    def _start(self, role: str, *flags: str) -> None:
        self._processes[role] = start([self.binary, role, *flags], self.folder / f"{role}.log")

    def _make_credentials(self) -> None:
        def openssl(*arguments: str | Path) -> None:
            subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

        openssl("genrsa", "-out", self.folder / "sa.key", "2048")
        openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=node",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", self.key, "-out", self.certificate,
        )  # fmt: skip
        (self.folder / "tokens.csv").write_text(
            'admin-token,admin,1,"system:masters"\n'
            "kcm-token,system:kube-controller-manager,2\n"
            "scheduler-token,system:kube-scheduler,3\n"
            "client-token,client,4\n"
        )


def write_kubeconfig(path: Path, server: str, authority: Path, token: str) -> None:
    """Write a kubeconfig with one context, `test`."""
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
                "users": [{"name": "test", "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            }
        )
    )
    path.chmod(0o600)
