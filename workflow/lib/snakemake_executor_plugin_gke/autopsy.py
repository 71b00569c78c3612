"""A record for a run whose pod delivered none, made from the facts that Kubernetes has."""

import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from harness.contract.codec import decode
from harness.contract.errors import SpecError
from harness.contract.exitcodes import CONFIG, DELIVERY
from harness.contract.outcome import Diagnosis, Evidence, outcome
from harness.contract.record import RECORD_VERSION, Record
from harness.contract.spec import RunSpec

from . import collect, status
from .errors import Refused, RemoteError

Json = dict[str, Any]
TAIL_LINES = 2000
RECORD_LINE = "HARNESS-RECORD "
"""How the supervisor begins the log line that holds the whole record."""
DIAGNOSE_S = 120.0
EXIT_OUTCOMES = {CONFIG: "config_error", DELIVERY: "upload_failed"}
"""What the supervisor's own exit codes mean; the diagnosis judges every other end."""


class Source(Protocol):
    """The part of the Kubernetes client that an autopsy needs."""

    namespace: str

    def pods(self, selector: str) -> list[Json]: ...

    def events(self, about: str = ...) -> list[Json]: ...

    def log(self, pod: str, tail_lines: int) -> str | None: ...

    def node(self, name: str) -> dict[str, str]: ...


class Morgue:
    """What Kubernetes knows about many Jobs that are over, for at most one LIST a poll: first pods, then events."""

    def __init__(self, cluster: Source, refused: Callable[[str], None]) -> None:
        self._cluster, self._refused = cluster, refused
        self._lock = threading.Lock()
        self._selector = ""
        self._pods: dict[str, list[Json]] = {}
        """Pods by Job, listed when the Job was over already."""
        self._events: dict[str, list[Json]] = {}
        self._fresh: dict[str, list[Json]] | None = None
        """Pods as listed in this poll."""
        self._asked = False
        self._nodes: dict[str, dict[str, str]] | None = {}
        """Labels by node; None: this account may not read nodes."""

    def new_poll(self, selector: str) -> None:
        """Begin another poll. Raises Unavailable when it needs events and cannot list them."""
        with self._lock:
            self._selector, self._asked, self._fresh = selector, False, None
            if due := {name for name in self._pods if name not in self._events}:
                self._asked = True
                self._list_events(due)

    def facts(self, name: str, job: Json | None, *, with_log: bool = True, with_events: bool = True) -> Json | None:
        """Everything known about a Job; None: ask again in the next poll. Raises Unavailable."""
        with self._lock:
            if name not in self._pods:
                if self._fresh is None:
                    if self._asked:
                        return None
                    self._asked, self._fresh = True, self._list_pods()
                self._pods[name] = self._fresh.get(name, [])
            if with_events and name not in self._events:
                return None
            pods, events = self._pods.pop(name), self._events.pop(name, [])
        last, nodes = status.culprit(pods), status.nodes_of(job or {})
        log = self._cluster.log(last["metadata"]["name"], TAIL_LINES) if last and with_log else None
        return {
            "job": {
                "name": name,
                "created": (job or {}).get("metadata", {}).get("creationTimestamp"),
                "status": (job or {}).get("status"),
            },
            "pod": last,
            "pods": pods,
            "nodes": status.roll_call(pods, nodes) if nodes > 1 else None,
            "bought": self._labels(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")),
            "events": sorted(events, key=status.event_time),
            "log_tail": log.splitlines() if log is not None else None,
            "cloud_logging": logging_query(self._cluster.namespace, name),
        }

    def _labels(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """How the nodes of these names were bought, as far as this account may know."""
        wanted = sorted(set(names))
        for name in wanted:
            if self._nodes is not None and name not in self._nodes:
                try:
                    self._nodes[name] = self._cluster.node(name)
                except Refused:
                    self._nodes = None
        return {} if self._nodes is None else {name: self._nodes[name] for name in wanted}

    def _list_pods(self) -> dict[str, list[Json]]:
        pods: dict[str, list[Json]] = {}
        try:
            for pod in self._cluster.pods(self._selector):
                pods.setdefault(status.job_of(pod), []).append(_slim(pod))
        except Refused as error:
            self._refused(f"{error}; the facts about failed runs lack their pods")
        return pods

    def _list_events(self, due: set[str]) -> None:
        about = {p["metadata"]["name"]: name for name in due for p in self._pods[name]} | {name: name for name in due}
        found: dict[str, list[Json]] = {name: [] for name in due}
        try:
            for event in self._cluster.events("type!="):
                if name := about.get(event["involvedObject"].get("name")):
                    found[name].append(event)
        except Refused as error:
            self._refused(f"{error}; the facts about failed runs lack their events")
        self._events |= found


def logging_query(namespace: str, name: str) -> str:
    """The Cloud Logging query for everything the Job's pods have printed, gone or not."""
    return (
        'resource.type="k8s_container" AND resource.labels.container_name="harness" AND '
        f'resource.labels.namespace_name="{namespace}" AND '
        f'labels."k8s-pod/batch_kubernetes_io/job-name"="{name}"'
    )


def read_cloud_log(query: str) -> list[str] | None:
    """The last lines a query finds, oldest first; None without the library, the permission or an entry."""
    try:
        from google.cloud import logging  # optional: pip install google-cloud-logging
    except ImportError:
        return None
    try:
        entries = logging.Client().list_entries(filter_=query, order_by=logging.DESCENDING, max_results=TAIL_LINES)
        lines = [str(entry.payload) for entry in entries]
    except Exception:  # the client prints the query, and whoever runs it sees the error
        return None
    return lines[::-1] or None


def fill_log(facts: Json) -> None:
    """Complete facts without a log from Cloud Logging, when its client library is installed."""
    if facts["log_tail"] is None:
        facts["log_tail"] = read_cloud_log(facts["cloud_logging"])


def conclude(facts: Json, spec: RunSpec, folder: Path) -> Record:
    """Write k8s.json and a record into the attempt's folder and return the record."""
    collect.write_json(folder / "k8s.json", facts)
    record = recovered(facts, spec) or _made(facts, spec)
    collect.write_json(folder / "record.json", record.to_json())
    return record


def recovered(facts: Json, spec: RunSpec) -> Record | None:
    """The record that the supervisor printed because it could not upload it; its files are lost."""
    for line in reversed(facts["log_tail"] or []):
        _, found, text = line.partition(RECORD_LINE)
        if not found:
            continue
        try:
            record = collect.check_record(text, spec, "pod log")
        except RemoteError:
            return None
        note = "Recovered from the pod's log: the bucket did not take it, and the files beside it are lost."
        return structs.replace(record, files=(), notes=(*record.notes, note))
    return None


def corrected(record: Record, facts: Json) -> Record:
    """A record with the cause that Kubernetes knows, when all that node 0 knew was that another node is lost."""
    if facts.get("nodes") is None or record.outcome not in ("preemption", "network_fault"):
        return record
    found = diagnose(facts)
    if found.outcome in ("ok", "unknown", "preemption", "network_fault"):
        return record
    note = f"Node 0 recorded {record.outcome}; the client knows the cause from Kubernetes. See k8s.json."
    return structs.replace(record, outcome=found.outcome, diagnosis=found, notes=(*record.notes, note))


def _made(facts: Json, spec: RunSpec) -> Record:
    diagnosis = diagnose(facts)
    pod = (facts["pod"] or {}).get("status") or {}
    ended: Json = next((s["terminated"] for s in _states(facts) if "terminated" in s), {})
    return Record(
        record_version=RECORD_VERSION,
        source=None,
        spec=spec,
        spec_hash=spec.hash(),
        outcome=diagnosis.outcome,
        diagnosis=diagnosis,
        started_at=ended.get("startedAt") or pod.get("startTime"),
        ended_at=ended.get("finishedAt"),
        wall_s=None,
        tries=(),
        measured=None,
        resolved=None,
        environment=None,
        files=(),
        pod=max(1, len(facts["pods"])),
        notes=("Written by the client from what Kubernetes knows: the pod left no record. See k8s.json.",),
    )


LOST = "Its pod delivered a record, but record and log are gone: deleted, or the bucket's prefix has changed."


def diagnose(facts: Json) -> Diagnosis:
    """How the run ended, as far as Kubernetes, the supervisor's exit code and the log tell; never `ok`."""
    found = _judged(facts)
    if facts.get("nodes") and facts["pod"]:
        said = tuple(Evidence(file="k8s.json", line=0, text=line) for line in facts["nodes"])
        where = f"Node {status.node_of(facts['pod'])}: {found.sentence}"
        found = dataclasses.replace(found, evidence=(*found.evidence, *said), sentence=where)
    if found.outcome != "ok":
        return found
    # Exit status 0 says that a record was delivered. It is gone, so nothing shows that the run was ok.
    return Diagnosis(outcome="unknown", confidence="low", evidence=found.evidence, sentence=LOST)


def _judged(facts: Json) -> Diagnosis:
    code = next((s["terminated"].get("exitCode") for s in _states(facts) if "terminated" in s), None)
    log = facts["log_tail"] or []
    if code in EXIT_OUTCOMES:
        name = EXIT_OUTCOMES[code]
        said = [Evidence(file="pod.log", line=i, text=t[:1000]) for i, t in enumerate(log, 1) if t.startswith("error:")]
        evidence = (*said[-3:], Evidence(file="k8s.json", line=0, text=f"the supervisor ended with exit code {code}"))
        sentence = said[-1].text.removeprefix("error:").strip()[:300] if said else outcome(name).sentence
        return Diagnosis(outcome=name, confidence="high", evidence=evidence, sentence=sentence)
    return _ask_harness(facts, log)


def _ask_harness(facts: Json, log: list[str]) -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "pod.log").write_text("\n".join(log) + "\n", encoding="utf-8")
        for part in ("pod", "events"):
            (place / f"{part}.json").write_text(json.dumps(facts[part]), encoding="utf-8")
        command = [sys.executable, "-m", "harness", "diagnose", "pod.log", "--json"]
        command += ["--pod", "pod.json", "--events", "events.json"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DIAGNOSE_S, check=False)
            return decode(Diagnosis, json.loads(done.stdout))
        except subprocess.TimeoutExpired:
            text = f"no answer within {DIAGNOSE_S:.0f} s"
        except (ValueError, SpecError):
            text = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        said = Evidence(file="k8s.json", line=0, text=f"the diagnosis itself failed: {text[:500]}")
        return Diagnosis(outcome="unknown", confidence="low", evidence=(said,), sentence=outcome("unknown").sentence)


def _states(facts: Json) -> list[Json]:
    return status.container_states(facts["pod"]) if facts["pod"] else []


def _slim(pod: Json) -> Json:
    """A pod without the fields that are equal for all pods or that do not explain its end."""
    metadata = {k: pod["metadata"].get(k) for k in ("name", "uid", "creationTimestamp", "deletionTimestamp")}
    if node := (pod["metadata"].get("labels") or {}).get(status.NODE_LABEL):
        metadata["labels"] = {status.NODE_LABEL: node}
    spec = {"nodeName": pod["spec"].get("nodeName"), "image": pod["spec"]["containers"][0].get("image")}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": pod.get("status") or {}}
