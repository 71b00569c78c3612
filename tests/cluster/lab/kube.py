"""Plain JSON access to the cluster for the tests, apart from the product's own client."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes import client, config

from tests.cluster.lab.process import until


class Kube:
    """One namespace."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        configuration = client.Configuration()
        config.load_kube_config(kubeconfig, client_configuration=configuration)
        api = client.ApiClient(configuration)
        self.namespace = namespace
        self.core, self.batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self._any, self._rbac = client.CustomObjectsApi(api), client.RbacAuthorizationV1Api(api)
        self._admission = client.AdmissionregistrationV1Api(api)

    def jobs(self) -> list[dict[str, Any]]:
        """All Jobs of the namespace."""
        return self._list(self.batch.list_namespaced_job)

    def pods(self) -> list[dict[str, Any]]:
        """All pods of the namespace."""
        return self._list(self.core.list_namespaced_pod)

    def running(self) -> list[dict[str, Any]]:
        """Pods that run."""
        return [p for p in self.pods() if p["status"].get("phase") == "Running"]

    def create(self, job: dict[str, Any], *, dry_run: bool = False) -> None:
        """Create a Job as it is, every field of it judged by the API server."""
        options = {"dry_run": "All"} if dry_run else {}
        self._any.create_namespaced_custom_object(
            "batch", "v1", self.namespace, "jobs", job, field_validation="Strict", **options
        )

    def make_namespace(self) -> None:
        """Create the namespace."""
        self.core.create_namespace({"metadata": {"name": self.namespace}})

    def allow(self, user: str, role: dict[str, Any]) -> None:
        """Give a user a Role in this namespace, and nothing else."""
        self._rbac.create_namespaced_role(self.namespace, role)
        name, group = role["metadata"]["name"], "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": name},
            "roleRef": {"kind": "Role", "name": name, "apiGroup": group},
            "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
        }
        self._rbac.create_namespaced_role_binding(self.namespace, binding)

    def forbid(self, resource: str) -> None:
        """Take a resource out of every Role of the namespace."""
        for role in self._rbac.list_namespaced_role(self.namespace).items:
            for rule in role.rules:
                rule.resources = [r for r in rule.resources if r != resource]
            role.rules = [rule for rule in role.rules if rule.resources]
            self._rbac.replace_namespaced_role(role.metadata.name, self.namespace, role)

    @contextlib.contextmanager
    def policy(self, group: str, resource: str, message: str) -> Iterator[None]:
        """Have the API server refuse to create a resource in this namespace, once it enforces the policy."""
        name = f"{resource}.{self.namespace}"
        rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
        spec = {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
                "resourceRules": [rule],
            },
            "validations": [{"expression": "false", "message": message}],
        }
        self._admission.create_validating_admission_policy({"metadata": {"name": name}, "spec": spec})
        self._admission.create_validating_admission_policy_binding(
            {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
        )
        try:
            until(lambda: self._refuses(group, resource), 30, f"the policy {name} to be enforced")
            yield
        finally:
            self._admission.delete_validating_admission_policy_binding(name)
            self._admission.delete_validating_admission_policy(name)

    def _refuses(self, group: str, resource: str) -> bool:
        pod = {"containers": [{"name": "probe", "image": "probe"}], "restartPolicy": "Never"}
        spec = {"template": {"spec": pod}} if group else pod
        body = {"apiVersion": f"{group}/v1" if group else "v1", "metadata": {"name": "probe"}, "spec": spec}
        create = self.batch.create_namespaced_job if group else self.core.create_namespaced_pod
        try:
            create(self.namespace, body | {"kind": "Job" if group else "Pod"}, dry_run="All")
        except client.ApiException as error:
            return "denied request" in str(error.body)
        return False

    def has_service_account(self) -> bool:
        """Whether pods can be made yet: admission wants the default account, a controller makes it."""
        return bool(self.core.list_namespaced_service_account(self.namespace).items)

    def is_leaving(self) -> bool:
        """Whether the namespace is being deleted, or gone."""
        try:
            return self.core.read_namespace(self.namespace).status.phase == "Terminating"
        except client.ApiException:
            return True

    def node_is_ready(self, name: str) -> bool:
        """Whether the scheduler may use a node; a new one carries a not-ready taint for some seconds."""
        try:
            node = self.core.read_node(name)
        except client.ApiException:
            return False
        return not any(t.key == "node.kubernetes.io/not-ready" for t in node.spec.taints or ())

    def evict(self, pod: str) -> None:
        """Evict a pod as a drain does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        self.core.create_namespaced_pod_eviction(pod, self.namespace, body)

    def delete_all(self) -> None:
        """Delete every Job and every pod at once, whatever state they are in."""
        self.batch.delete_collection_namespaced_job(self.namespace, propagation_policy="Background")
        self.core.delete_collection_namespaced_pod(self.namespace, grace_period_seconds=0)

    def _list(self, call: Callable[..., Any]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(call(self.namespace, _preload_content=False).data)["items"]
        return items
