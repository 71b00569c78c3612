"""The one file that talks to Kubernetes: plain JSON in, plain JSON out, errors sorted by what helps.

Answers are taken as JSON, not as the client's model objects: a LIST of 500 Jobs costs a tenth of the
time and memory. urllib3 retries every method. This is safe: a Job's name is a function of its spec, so a second create
of the same Job gets a 409.
"""

import json
import re
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from .errors import Denied, Expired, Full, Missing, Refused, Unavailable

CONNECT_S, READ_S = 5.0, 20.0
RETRIES, READ_RETRIES = 4, 1
"""Retries after an answer that asks for one, and after no answer: a hanging API is reported after 40 s."""
RETRY_AFTER_S = 5.0
"""Longest pause, whatever the server's Retry-After asks for; the next poll asks again anyway."""
RETRY_STATUS = (429, 500, 502, 503, 504)
UNAUTHORIZED = 401
LOG_BYTES = 32 * 2**20
"""How much of a pod's log is read, from its end."""
BOUGHT_LABELS = (
    "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "cloud.google.com/gke-spot",
    "cloud.google.com/gke-provisioning", "cloud.google.com/gke-flex-start", "cloud.google.com/compute-class",
)  # fmt: skip
"""Labels of a node that tell its machine, its zone and how it was bought."""
TELLING_EVENTS = ",".join(
    f"reason!={usual}" for usual in ("SuccessfulCreate", "Scheduled", "Pulling", "Pulled", "Created", "Started")
)
"""Field selector of events that may explain a wait: those of pods, of Jobs and of a queue's own objects."""


class Cluster:
    """The Jobs of one namespace, and what explains them."""

    def __init__(self, namespace: str, context: str = "") -> None:
        self.namespace, self._context = namespace, context
        self.calls: dict[str, int] = {}
        self._connect()

    def _connect(self) -> None:
        """Read the kubeconfig. Later calls keep the context of the first, because another one is another cluster."""
        configuration, self._context = _configuration(self._context)
        api = client.ApiClient(configuration)
        self._host = configuration.host
        self._apis = {
            "batch": client.BatchV1Api(api),
            "core": client.CoreV1Api(api),
            # Sends the manifest as it is; the typed client would refuse some before the server sees them.
            "any": client.CustomObjectsApi(api),
        }

    def jobs(self, selector: str) -> dict[str, dict[str, Any]]:
        """Every Job of the selector by name, in one LIST. Raises Unavailable, Refused."""
        answer = self._ask("list jobs", "batch.list_namespaced_job", self.namespace, label_selector=selector)
        return {job["metadata"]["name"]: job for job in answer["items"]}

    def job(self, name: str) -> dict[str, Any] | None:
        """One Job, whatever its labels; None when there is none. Raises Unavailable, Refused."""
        try:
            return self._ask("read job", "batch.read_namespaced_job", name, self.namespace)
        except Missing:
            return None

    def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any] | None:
        """Create a Job and return it as the server keeps it; None when one of that name exists.

        Raises Unavailable, Refused.
        """
        options = {"dry_run": "All"} if dry_run else {}
        try:
            return self._ask(
                "create job", "any.create_namespaced_custom_object", "batch", "v1", self.namespace, "jobs",
                manifest, field_validation="Strict", **options,
            )  # fmt: skip
        except _Conflict:
            return None

    def delete(self, name: str, unchanged: dict[str, Any] | None = None) -> bool:
        """Delete a Job and, in the background, its pods; one that is gone is fine. Raises Unavailable, Refused.

        With `unchanged`, a Job as listed, only if nothing about it has changed since; returns False if something has.
        """
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if unchanged is not None:
            body["preconditions"] = {k: unchanged["metadata"][k] for k in ("uid", "resourceVersion")}
        try:
            self._ask("delete job", "batch.delete_namespaced_job", name, self.namespace, body=body)
        except Missing:
            return True
        except _Conflict:
            return False
        return True

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Every pod of the selector, in one LIST. Raises Unavailable, Refused."""
        answer = self._ask("list pods", "core.list_namespaced_pod", self.namespace, label_selector=selector)
        items: list[dict[str, Any]] = answer["items"]
        return items

    def events(self, about: str = TELLING_EVENTS) -> list[dict[str, Any]]:
        """Events of a field selector, in one LIST. Raises Unavailable, Refused."""
        answer = self._ask("list events", "core.list_namespaced_event", self.namespace, field_selector=about)
        items: list[dict[str, Any]] = answer["items"]
        return items

    def node(self, name: str) -> dict[str, str]:
        """Labels of a node, which say how it was bought; empty when it is gone. Raises Unavailable, Refused."""
        try:
            labels = self._ask("read node", "core.read_node", name)["metadata"].get("labels") or {}
        except Missing:
            return {}
        return {label: labels[label] for label in BOUGHT_LABELS if label in labels}

    def log(self, pod: str, tail_lines: int) -> str | None:
        """The last lines of a pod's log; None when the pod or its log is gone. Raises Unavailable, Refused."""
        try:
            return self._text(
                "read log", "core.read_namespaced_pod_log", pod, self.namespace,
                container="harness", tail_lines=tail_lines, limit_bytes=LOG_BYTES,
            )  # fmt: skip
        except Refused:  # gone, or a container that never started (400)
            return None

    def _ask(self, what: str, call: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        text = self._text(what, call, *arguments, **options)
        try:
            answer: dict[str, Any] = json.loads(text)
        except ValueError:
            raise Unavailable(f"cluster: {what}: found an answer that is not JSON: {text[:80]!r}") from None
        return answer

    def _text(self, what: str, call: str, *arguments: Any, **options: Any) -> str:
        self.calls[what] = self.calls.get(what, 0) + 1
        try:
            return self._send(call, *arguments, **options)
        except ApiException as error:
            if error.status != UNAUTHORIZED:
                raise _sorted(what, error, self.namespace) from None
            first = error
        # Somebody may have renewed the credentials since this client has read the kubeconfig.
        self._read_again(_sorted(what, first, self.namespace))
        try:
            return self._send(call, *arguments, **options)
        except ApiException as error:
            raise _sorted(what, error, self.namespace) from None

    def _send(self, call: str, *arguments: Any, **options: Any) -> str:
        api, _, method = call.partition(".")
        try:
            answer = getattr(self._apis[api], method)(
                *arguments, _preload_content=False, _request_timeout=(CONNECT_S, READ_S), **options
            )
            text: str = answer.data.decode("utf-8", "replace")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            trouble = Unavailable(f"cluster {self._host}: {method.replace('_', ' ')}: {_short(error)}")
            # The cluster may have moved: the next request goes where the kubeconfig then says.
            self._read_again(trouble)
            raise trouble from None
        return text

    def _read_again(self, trouble: Exception) -> None:
        try:
            self._connect()
        except Refused as error:
            # Somebody may be writing it at this moment.
            raise Unavailable(f"{trouble}; and {error}") from None


class _Conflict(Refused):
    """409."""


class _Retry(urllib3.Retry):
    """Retries that wait as long as the server asks for, up to a limit."""

    def get_retry_after(self, response: Any) -> float | None:
        asked_s = super().get_retry_after(response)
        return None if asked_s is None else min(asked_s, RETRY_AFTER_S)


def _sorted(what: str, error: ApiException, namespace: str) -> Exception:
    try:
        said = str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        said = error.reason or "no reason given"
    text = f"cluster: {what}: {error.status}: {said}"
    match error.status:
        case 409:
            return _Conflict(text)
        case 404 if f'namespaces "{namespace}"' in said:
            return Refused(f"{text}: create the namespace (kubectl create namespace {namespace}), or --gke-namespace")
        case 404:
            return Missing(text)
        case 401:
            return Expired(f"{text} (credentials are missing or expired: gcloud container clusters get-credentials)")
        case 403 if quota := re.search(r"exceeded quota: .*", said):
            return Full(quota[0])
        case 403 if "is being terminated" in said:
            return Refused(f"{text}: namespace {namespace} is being deleted with everything in it")
        case 403 if what != "create job" or "cannot create resource" in said:
            return Denied(
                f"{text}: this account lacks a right of profiles/gke/role.yaml in namespace {namespace}, or there is "
                "no such namespace"
            )
    if not error.status or error.status in RETRY_STATUS:
        asked = (error.headers or {}).get("Retry-After")
        return Unavailable(f"{text} (it asks to wait {asked} s)" if asked else text)
    return Refused(text)


def _short(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {str(reason)[:200]}"


def _configuration(context: str) -> tuple[client.Configuration, str]:
    """The kubeconfig as the client library wants it, and the context it was taken from. Raises Refused."""
    configuration = client.Configuration()
    try:
        if not context:
            context = str(config.list_kube_config_contexts()[1]["name"])  # type: ignore[no-untyped-call]
        config.load_kube_config(context=context, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except Exception as error:  # the library lets through whatever a half-written file makes it stumble over
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            words = str(error) if isinstance(error, config.ConfigException) else f"{type(error).__name__}: {error}"
            raise Refused(
                f"no cluster to talk to: the kubeconfig cannot be used: {' '.join(words.split())[:300]}; run gcloud "
                "container clusters get-credentials CLUSTER, or set KUBECONFIG, or name another --gke-context"
            ) from None
    configuration.retries = _Retry(
        total=RETRIES, read=READ_RETRIES, connect=READ_RETRIES, backoff_factor=0.5, status_forcelist=RETRY_STATUS,
        allowed_methods=None, raise_on_status=False,
    )  # fmt: skip
    configuration.connection_pool_maxsize = 16
    return configuration, context
