"""Create, inspect and remove labelled Kubernetes objects, each at most once, for `dtbench gke`."""

import json
import os
from collections.abc import Iterator
from typing import Any

from kubernetes import config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ResourceNotFoundError

from dtbench.cloud.objects import KINDS, LABELS, Json, is_ours, title
from harness.contract.errors import HarnessError

MANAGER = "dtbench"
NOT_FOUND = 404
SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())
UNKNOWN_CLASS = (
    "this cluster knows no ComputeClass; expected GKE 1.33.3-gke.1136000 or newer. "
    "Make node pools by hand instead (docs/gke.md)"
)
COUNTED_OUT = ("Event", "Endpoints", "EndpointSlice", "PodMetrics")
"""Kinds that Kubernetes makes for other objects."""
PRESENT_ANYWAY = {
    ("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt"),
}  # fmt: skip
"""Kind and name of what Kubernetes itself puts into each namespace."""


class Cluster:
    """Objects by manifest. Every method raises HarnessError in the API server's words."""

    def __init__(self, context: str = "") -> None:
        try:
            api = config.new_client_from_config(os.environ.get("KUBECONFIG"), context or None)  # type: ignore[no-untyped-call]
            self._api = dynamic.DynamicClient(api)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError, ApiException) as error:
            raise HarnessError(
                f"no cluster to talk to: {' '.join(str(error).split())[:300]}; run gcloud container clusters "
                "get-credentials CLUSTER, or set KUBECONFIG"
            ) from None

    def find(self, wanted: Json) -> Json | None:
        """The object of that kind and name, whoever made it."""
        metadata = wanted["metadata"]
        try:
            return _plain(
                self._kind(wanted["apiVersion"], wanted["kind"]).get(
                    name=metadata["name"], namespace=metadata.get("namespace")
                )
            )
        except ApiException as error:
            if error.status == NOT_FOUND:
                return None
            raise _said(title(wanted), error) from None

    def make(self, wanted: Json, *, dry_run: bool) -> str:
        """Bring an object to what is wanted; returns what happened in words. Leaves alone what `up` has not made."""
        before = self.find(wanted)
        if before is not None and not is_ours(before):
            return "exists and was not made by dtbench: left as it is"
        namespace = wanted["metadata"].get("namespace")
        if dry_run and namespace and self.find(_namespace(namespace)) is None:
            return "would be made"
        try:
            resource = self._kind(wanted["apiVersion"], wanted["kind"])
            after = _plain(
                self._api.server_side_apply(  # type: ignore[no-untyped-call]
                    resource, wanted, namespace=namespace, field_manager=MANAGER, force_conflicts="true",
                    query_params=[("fieldValidation", "Strict")], dry_run="All" if dry_run else None,
                )
            )  # fmt: skip
        except ApiException as error:
            raise _said(title(wanted), error) from None
        if before is None:
            return "would be made" if dry_run else "made"
        same = _content(before) == _content(after)
        return "unchanged" if same else "would be changed" if dry_run else "changed"

    def made(self, namespace: str) -> list[Json]:
        """Everything that `up` has made for a namespace, the last made first."""
        found: list[Json] = []
        for version, kind in reversed(KINDS):
            try:
                resource = self._kind(version, kind)
            except HarnessError:  # no ComputeClass, so none was made
                continue
            listed = self._list(resource, namespace if resource.namespaced else None, SELECTOR)
            found += [o for o in listed if kind != "Namespace" or o["metadata"]["name"] == namespace]
        return found

    def remove(self, found: Json) -> None:
        """Delete an object, the one that was found and no other of its name."""
        metadata = found["metadata"]
        body = {"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}}
        try:
            self._kind(found["apiVersion"], found["kind"]).delete(
                name=metadata["name"], namespace=metadata.get("namespace"), body=body
            )
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise _said(title(found), error) from None

    def jobs(self, namespace: str | None = None) -> list[Json]:
        """Jobs of studies in a namespace, or in all of them: ComputeClasses belong to the whole cluster."""
        resource = self._kind("batch/v1", "Job")
        return list(self._list(resource, namespace, "app.kubernetes.io/managed-by=snakemake-executor-plugin-gke"))

    def others(self, namespace: str) -> list[str]:
        """What lies in a namespace that neither `up` nor Kubernetes itself has put there."""
        found = []
        for resource in self._api.resources.search(namespaced=True):
            # The client also has a kind of its own for each list.
            if resource.kind.endswith("List") or "list" not in resource.verbs or resource.kind in COUNTED_OUT:
                continue
            for item in self._list(resource, namespace):
                known = is_ours(item) or (resource.kind, item["metadata"]["name"]) in PRESENT_ANYWAY
                if not known and not item["metadata"].get("ownerReferences"):
                    found.append(f"{resource.kind} {item['metadata']['name']}")
        return sorted(set(found))

    def _list(self, resource: Any, namespace: str | None, selector: str = "") -> Iterator[Json]:
        try:
            answer = _plain(resource.get(namespace=namespace, label_selector=selector or None))
        except ApiException as error:
            raise _said(f"list {resource.kind}", error) from None
        for item in answer.get("items") or ():
            yield {"apiVersion": resource.group_version, "kind": resource.kind} | item

    def _kind(self, version: str, kind: str) -> Any:
        try:
            return self._api.resources.get(api_version=version, kind=kind)
        except ResourceNotFoundError:
            raise HarnessError(
                UNKNOWN_CLASS if kind == "ComputeClass" else f"{kind}: unknown to this cluster"
            ) from None


def _namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _plain(found: Any) -> Json:
    plain: Json = found.to_dict()
    return plain


def _content(found: Json) -> Json:
    """An object without what the API server itself counts and times."""
    metadata = {
        k: v for k, v in found["metadata"].items() if k not in ("managedFields", "resourceVersion", "generation")
    }
    return found | {"metadata": metadata}


def _said(what: str, error: ApiException) -> HarnessError:
    try:
        said = str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        said = error.reason or "no reason given"
    return HarnessError(f"{what}: {error.status}: {said}")
