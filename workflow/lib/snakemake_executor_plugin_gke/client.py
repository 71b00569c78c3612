"""The one file that talks to Kubernetes: plain JSON in, plain JSON out, errors sorted into two kinds.

Answers are taken as JSON, not as the client's model objects: a LIST of 500 Jobs costs a tenth of the
time and memory. Retries are urllib3's, on every method: a name is a function of its spec, so a create
that is sent twice meets itself as 409.
"""

import json
import re
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from .errors import Expired, Full, Refused, Unavailable

CONNECT_S, READ_S = 5.0, 30.0
RETRIES = 4
RETRY_STATUS = (429, 500, 502, 503, 504)
UNAUTHORIZED, CONFLICT, NOT_FOUND, FORBIDDEN = 401, 409, 404, 403
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
        configuration = _configuration(self._context)
        api = client.ApiClient(configuration)
        self._host = configuration.host
        self._apis = {
            "batch": client.BatchV1Api(api),
            "core": client.CoreV1Api(api),
            # Sends a manifest as it is; the typed one would judge it before the server can.
            "any": client.CustomObjectsApi(api),
        }

    def jobs(self, selector: str) -> dict[str, dict[str, Any]]:
        """Every Job of the selector by name, in one LIST. Raises Unavailable, Refused."""
        answer = self._ask("list jobs", "batch.list_namespaced_job", self.namespace, label_selector=selector)
        return {job["metadata"]["name"]: job for job in answer["items"]}

    def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> bool:
        """Create a Job; False when one of that name exists. Raises Unavailable, Refused."""
        options = {"dry_run": "All"} if dry_run else {}
        try:
            self._ask(
                "create job", "any.create_namespaced_custom_object", "batch", "v1", self.namespace, "jobs",
                manifest, field_validation="Strict", **options,
            )  # fmt: skip
        except _Conflict:
            return False
        return True

    def delete(self, name: str) -> None:
        """Delete a Job and, in the background, its pods; a Job that is gone is fine. Raises Unavailable, Refused."""
        try:
            self._ask(
                "delete job", "batch.delete_namespaced_job", name, self.namespace, propagation_policy="Background"
            )
        except _NotFound:
            return

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

    def node(self, name: str) -> dict[str, Any] | None:
        """A node; None when it is gone or not ours to read (nodes belong to no namespace). Raises Unavailable."""
        try:
            return self._ask("read node", "core.read_node", name)
        except Refused:
            return None

    def log(self, pod: str, tail_lines: int) -> str | None:
        """The last lines of a pod's log; None when the pod or its log is gone. Raises Unavailable, Refused."""
        try:
            return self._text(
                "read log", "core.read_namespaced_pod_log", pod, self.namespace,
                container="harness", tail_lines=tail_lines,
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
                raise _sorted(what, error) from None
        # Somebody may have renewed the credentials since this client has read the kubeconfig.
        self._connect()
        try:
            return self._send(call, *arguments, **options)
        except ApiException as error:
            raise _sorted(what, error) from None

    def _send(self, call: str, *arguments: Any, **options: Any) -> str:
        api, _, method = call.partition(".")
        try:
            answer = getattr(self._apis[api], method)(
                *arguments, _preload_content=False, _request_timeout=(CONNECT_S, READ_S), **options
            )
            text: str = answer.data.decode("utf-8", "replace")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"cluster {self._host}: {method.replace('_', ' ')}: {_short(error)}") from None
        return text


class _Conflict(Refused):
    """409."""


class _NotFound(Refused):
    """404."""


def _sorted(what: str, error: ApiException) -> Exception:
    try:
        said = json.loads(error.body or "")["message"]
    except (TypeError, ValueError, KeyError):
        said = error.reason or "no reason given"
    text = f"cluster: {what}: {error.status}: {said}"
    if error.status == CONFLICT:
        return _Conflict(text)
    if error.status == NOT_FOUND:
        return _NotFound(text)
    if error.status is None or error.status in RETRY_STATUS or error.status == 0:
        return Unavailable(text)
    if error.status == UNAUTHORIZED:
        return Expired(f"{text} (credentials are missing or expired: gcloud container clusters get-credentials)")
    if error.status == FORBIDDEN and (quota := re.search(r"exceeded quota: .*", said)):
        return Full(quota.group(0))
    return Refused(text)


def _short(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {str(reason)[:200]}"


def _configuration(context: str) -> client.Configuration:
    configuration = client.Configuration()
    try:
        config.load_kube_config(context=context or None, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            raise Refused(
                f"no cluster to talk to: {error}; run gcloud container clusters get-credentials CLUSTER, "
                "or set KUBECONFIG, or name another --gke-context"
            ) from None
    configuration.retries = urllib3.Retry(
        total=RETRIES, backoff_factor=0.5, status_forcelist=RETRY_STATUS, allowed_methods=None, raise_on_status=False
    )
    configuration.connection_pool_maxsize = 16
    return configuration
