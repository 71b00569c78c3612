"""What is left of a run whose pod delivered no record: facts from Kubernetes, and a record made of them."""

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from harness.contract.codec import decode
from harness.contract.diagnosis import Diagnosis, Evidence
from harness.contract.errors import SpecError
from harness.contract.exitcodes import CONFIG, DELIVERY
from harness.contract.outcome import outcome
from harness.contract.record import RECORD_VERSION, Record
from harness.contract.spec import RunSpec

from . import collect, status
from .errors import RemoteError

Json = dict[str, Any]
TAIL_LINES = 2000
RECORD_LINE = "HARNESS-RECORD "
"""How the supervisor begins the log line that holds the whole record."""
DIAGNOSE_S = 120.0
EXIT_OUTCOMES = {CONFIG: "config_error", DELIVERY: "upload_failed"}
"""What the supervisor's own exit codes mean; every other end is the diagnosis' to judge."""


class Morgue(Protocol):
    """The part of the Kubernetes client that an autopsy needs."""

    namespace: str

    def pods(self, selector: str) -> list[Json]: ...

    def events(self, about: str = ...) -> list[Json]: ...

    def node(self, name: str) -> Json | None: ...

    def log(self, pod: str, tail_lines: int) -> str | None: ...


def gather(cluster: Morgue, name: str, job: Json | None, *, with_log: bool = True) -> Json:
    """Everything Kubernetes still knows about a Job. Raises Unavailable, Refused."""
    pods = cluster.pods(f"batch.kubernetes.io/job-name={name}")
    last = status.newest(pods)
    names = {name} | {p["metadata"]["name"] for p in pods}
    events = [e for e in cluster.events("type!=") if e["involvedObject"].get("name") in names]
    log = cluster.log(last["metadata"]["name"], TAIL_LINES) if last and with_log else None
    return {
        "job": {"name": name, "status": (job or {}).get("status")},
        "pod": _slim(last) if last else None,
        "pods": [_slim(p) for p in pods],
        "nodes": {n: _node(cluster.node(n)) for n in sorted({p["spec"].get("nodeName") or "" for p in pods} - {""})},
        "events": sorted(events, key=status.event_time),
        "log_tail": log.splitlines() if log is not None else None,
        "cloud_logging": logging_query(cluster.namespace, name),
    }


def logging_query(namespace: str, name: str) -> str:
    """The Cloud Logging query for everything the Job's pods have printed, gone or not."""
    return (
        'resource.type="k8s_container" AND resource.labels.container_name="harness" AND '
        f'resource.labels.namespace_name="{namespace}" AND '
        f'labels."k8s-pod/batch_kubernetes_io/job-name"="{name}"'
    )


def fill_log(facts: Json, read: Callable[[str], list[str] | None]) -> None:
    """Complete facts without a log from Cloud Logging, when its client library is installed."""
    if facts["log_tail"] is None:
        facts["log_tail"] = read(facts["cloud_logging"])


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
        return dataclasses.replace(record, files=(), notes=(*record.notes, note))
    return None


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


def diagnose(facts: Json) -> Diagnosis:
    """How the run ended, as far as Kubernetes, the supervisor's exit code and the log tell."""
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
    """A pod without what is the same for all of them or says nothing about its end."""
    metadata = {k: pod["metadata"].get(k) for k in ("name", "uid", "creationTimestamp", "deletionTimestamp")}
    spec = {"nodeName": pod["spec"].get("nodeName"), "image": pod["spec"]["containers"][0].get("image")}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": pod.get("status") or {}}


def _node(node: Json | None) -> Json | None:
    if node is None:
        return None
    return {
        "labels": node["metadata"].get("labels"),
        "taints": node["spec"].get("taints"),
        "conditions": (node.get("status") or {}).get("conditions"),
    }
