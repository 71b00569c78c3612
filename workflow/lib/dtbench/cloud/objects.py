"""The Kubernetes objects that `dtbench gke up` makes: namespace, account, Role, Service and ComputeClasses. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtbench.study.files import read_mapping
from dtbench.study.platforms import PlatformEntry
from harness.contract.errors import SpecError, nearest

Json = dict[str, Any]
OWNER = "app.kubernetes.io/managed-by"
LABELS = {"app.kubernetes.io/name": "distributed-training-bench", OWNER: "dtbench"}
"""On everything that `up` makes; `down` removes nothing without them."""
PURCHASES = ("reservation", "spot", "flex-start", "on-demand")
"""How GKE may get a machine, in the order in which it tries."""
IDLE_MINUTES = 5
"""How long a node that nothing needs is kept: the next waiting run takes it at once, and idle GPUs cost money."""
KINDS = (
    ("v1", "Namespace"), ("v1", "ServiceAccount"), ("v1", "Service"), ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"), ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"), ("cloud.google.com/v1", "ComputeClass"),
)  # fmt: skip
"""API version and kind of what `up` makes, in its order; `down` goes the other way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What the user chooses."""

    namespace: str
    account: str
    """Kubernetes service account of the pods; empty: none is made."""
    client: str = ""
    """Who runs the client: gets the Role of profiles/gke/role.yaml. Empty: nobody is bound to it."""
    zones: tuple[str, ...] = ()
    """Zones where machines may be taken; empty: the cluster's own."""
    purchases: tuple[str, ...] = PURCHASES
    reservation: str = ""
    """Name of a reservation; empty: none is used."""
    node_account: str = ""
    """Google service account of the nodes; empty: the project's default."""

    def __post_init__(self) -> None:
        for purchase in self.purchases:
            if purchase not in PURCHASES:
                raise SpecError(f"--buy: found {purchase!r}; {nearest(purchase, PURCHASES)}")


def manifests(setup: Setup, platforms: Sequence[PlatformEntry], profile: Path) -> list[Json]:
    """Every object, in the order to make them; `profile` is the folder with role.yaml and service.yaml."""
    found = [_object(*KINDS[0], setup.namespace)]
    if setup.account:
        found.append(_object(*KINDS[1], setup.account, setup.namespace))
    for name in ("service", "role"):
        plain = read_mapping(profile / f"{name}.yaml")
        found.append(plain | {"metadata": plain["metadata"] | {"namespace": setup.namespace, "labels": LABELS}})
    if setup.client:
        nodes = _object(*KINDS[5], "dtbench-nodes")
        # One node at a time and by name: its labels say how it was bought.
        nodes["rules"] = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
        found += [_bound(KINDS[4], found[-1], setup), nodes, _bound(KINDS[6], nodes, setup)]
    return found + [compute_class(entry, setup) for entry in platforms]


def _bound(kind: tuple[str, str], role: Json, setup: Setup) -> Json:
    """A binding of a Role to the client."""
    name, group = role["metadata"]["name"], "rbac.authorization.k8s.io"
    found = _object(*kind, name, role["metadata"].get("namespace", ""))
    found["roleRef"] = {"apiGroup": group, "kind": role["kind"], "name": name}
    found["subjects"] = [{"apiGroup": group, "kind": "User", "name": setup.client}]
    return found


def compute_class(entry: PlatformEntry, setup: Setup) -> Json:
    """One platform as GKE buys it: GKE makes a pool by the first priority that it can get and removes it when idle.

    Raises SpecError for a platform that names no machine type or accelerator, or that nothing is left to buy by.
    """
    if not entry.machine_type or not entry.gke_accelerator:
        raise SpecError(
            f"platform {entry.name}: machine_type and gke_accelerator not both set, so GKE cannot buy it: add them to "
            "its entry in config/platforms.yaml, or choose a platform that has them"
        )
    ways = [p for p in PURCHASES if p in setup.purchases and (p != "spot" or entry.spot)]
    if not setup.reservation and "reservation" in ways:
        ways.remove("reservation")
    if not ways:
        raise SpecError(
            f"platform {entry.name}: --buy {','.join(setup.purchases)} leaves no way to buy it: spot needs "
            "`spot: true` of the platform, reservation needs --reservation"
        )
    found = _object(*KINDS[7], entry.compute_class)
    config: Json = {"imageStreaming": {"enabled": True}}
    if setup.node_account:
        config["serviceAccount"] = setup.node_account
    found["spec"] = {
        "nodePoolAutoCreation": {"enabled": True},
        "nodePoolConfig": config,
        "autoscalingPolicy": {"consolidationDelayMinutes": IDLE_MINUTES},
        # A run that moves to a better node begins anew.
        "activeMigration": {"optimizeRulePriority": False},
        "priorities": [_priority(entry, way, setup) for way in ways],
        # Another machine than the platform's would measure something else.
        "whenUnsatisfiable": "DoNotScaleUp",
    }
    return found


def _priority(entry: PlatformEntry, way: str, setup: Setup) -> Json:
    count = entry.offer.machine_gpus or entry.ranks_per_node
    gpu = {"type": entry.gke_accelerator, "count": count, "driverVersion": "latest"}
    found: Json = {"machineType": entry.machine_type, "gpu": gpu, "spot": way == "spot"}
    zones = [entry.zone] if entry.zone else list(setup.zones)
    if way == "reservation":
        # A reservation lies in zones of its own: GKE refuses a location beside it.
        specific = {"name": setup.reservation} | ({"zones": zones} if zones else {})
        return found | {"reservations": {"affinity": "Specific", "specific": [specific]}}
    if way == "flex-start":
        found["flexStart"] = {"enabled": True}
    return found | ({"location": {"zones": zones}} if zones else {})


def _object(version: str, kind: str, name: str, namespace: str = "") -> Json:
    metadata: Json = {"name": name, "labels": dict(LABELS)} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def is_ours(found: Json) -> bool:
    """Whether `up` has made an object."""
    labels = found["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in LABELS.items())


def title(plain: Json) -> str:
    """An object's kind and name, for a line."""
    return f"{plain['kind']} {plain['metadata']['name']}"
