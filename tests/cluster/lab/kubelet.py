"""Nodes with GKE's labels, taints and GPUs, each served by one test kubelet.

A pod's command runs as a local process, so some things differ from a container, all of them in
the kubelet (controlplane/*.go): paths below a volume's mount are rewritten to a folder of this machine,
the process runs as this user with this machine's file system, and `python` is this environment's.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.lab.process import free_port, start, stop


@dataclass
class Node:
    """One machine of a node pool."""

    name: str
    accelerator: str = "nvidia-l4"
    gpus: int = 1
    machine_type: str = "g2-standard-12"
    cpus: int = 12
    memory: str = "48Gi"
    labels: dict[str, str] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """The v1.Node as GKE would register it."""
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {
                    "kubernetes.io/hostname": self.name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "node.kubernetes.io/instance-type": self.machine_type,
                    "topology.kubernetes.io/zone": "us-central1-a",
                    "cloud.google.com/gke-accelerator": self.accelerator,
                    "cloud.google.com/gke-nodepool": "l4-us-central1-a",
                    "cloud.google.com/gke-spot": "true",
                }
                | self.labels,
            },
            "spec": {
                "taints": [
                    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
                    {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"},
                ]
            },
            "status": {
                "capacity": {
                    "cpu": str(self.cpus),
                    "memory": self.memory,
                    "pods": "110",
                    "ephemeral-storage": "1000Gi",
                    "nvidia.com/gpu": str(self.gpus),
                }
            },
        }


class Kubelet:
    """The agent of one node."""

    def __init__(
        self, node: Node, binary: Path, kubeconfig: Path, certificate: tuple[Path, Path], folder: Path
    ) -> None:
        self.node, self.folder = node, folder
        self._binary, self._kubeconfig, self._certificate = binary, kubeconfig, certificate
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: dict[str, str], hosts: Path | None = None) -> None:
        """Join the cluster; `environment` is what an image and a network would give every container.

        With `hosts` its pods see that file as /etc/hosts, in place of the cluster's DNS; only root may do that.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "node.json").write_text(json.dumps(self.node.manifest()))
        certificate, key = self._certificate
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        private = (
            ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts] if hosts else []
        )
        self._process = start(
            [
                *private, self._binary, "kubelet", "--kubeconfig", self._kubeconfig,
                "--node", self.folder / "node.json", "--work", self.folder, "--listen", f"127.0.0.1:{free_port()}",
                "--cert", certificate, "--key", key,
            ],
            self.folder / "kubelet.log",
            {"PATH": path} | environment,
        )  # fmt: skip

    def power_off(self) -> None:
        """Pull the plug: pods die with SIGKILL, the API server hears nothing."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        stop(self._process, 20)

    def isolate(self) -> None:
        """Cut the node off: the API server hears nothing more of it, and its pods go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def shut_down(self) -> None:
        """What a Spot node is given: SIGTERM to every pod, their grace, then off."""
        stop(self._process, 60, first=signal.SIGUSR1)
