"""What Kubernetes says about a pod, as its API returns it, as verdicts; its events as lines of text."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.contract.outcome import OUTCOMES, Confidence, Evidence
from harness.diagnosis.judging.case import Verdict
from harness.diagnosis.reading.scan import match_text

_GONE = frozenset({"Terminated", "NodeShutdown", "Shutdown", "NodeLost", "Preempting", "Preempted"})
_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
     "ImageInspectError"}
)  # fmt: skip
_NOT_ADMITTED = ("Unschedulable", "UnexpectedAdmissionError", "NodeAffinity", "OutOf")
_DISRUPTIONS = ("PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC", "EvictionByEvictionAPI")


@dataclass(slots=True)
class PodFacts:
    """Verdicts and facts of one or several pods."""

    verdicts: list[Verdict] = field(default_factory=list)
    exit_code: int | None = None
    started: bool = False


def read_pods(document: Any) -> PodFacts:
    """Facts of a Pod, a Job, a List, or a list of them; anything else gives no facts."""
    facts = PodFacts()
    for item in _items(document):
        if item.get("kind") == "Job":
            _read_job(item, facts)
        else:
            _read_pod(item, facts)
    return facts


def events_text(document: Any) -> io.BytesIO:
    """Events in order of time, one line each, as `kubectl get events` shows them."""
    events = sorted(_items(document), key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
    lines = [
        f"{_text(e.get('type'))}\t{_text(e.get('reason'))}\t{_text(_get(e, 'involvedObject', 'kind'))}\t"
        f"{_text(e.get('message') or e.get('note'))}"
        for e in events
    ]
    return io.BytesIO("\n".join(lines).encode())


def _read_pod(pod: dict[str, Any], facts: PodFacts) -> None:
    status = _mapping(pod.get("status"))
    reason, message = _text(status.get("reason")), _text(status.get("message"))
    disruption = next((c for c in _conditions(status) if c.get("type") == "DisruptionTarget" and _true(c)), None)
    for container in _containers(status):
        _read_container(container, facts)
    if disruption is not None:
        _disruption(disruption, reason, message, facts)
    if reason == "Evicted":
        _add(facts, "evicted", reason, message)
    elif reason in _GONE:
        _add(facts, "preemption", reason, message)
    elif reason == "DeadlineExceeded":
        _add(facts, "deadline", reason, message)
    elif reason.startswith(_NOT_ADMITTED):
        _add(facts, "unschedulable", reason, message)
    for condition in _conditions(status):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            _add(facts, "unschedulable", "Unschedulable", _text(condition.get("message")))
    if status.get("phase") == "Succeeded":
        facts.exit_code = 0


def _disruption(condition: dict[str, Any], reason: str, message: str, facts: PodFacts) -> None:
    """The outcome for DisruptionTarget is in its reason: the kubelet uses it for pressure and for shutdown alike."""
    why, text = _text(condition.get("reason")), _text(condition.get("message")) or message
    if why in _DISRUPTIONS:
        _add(facts, "preemption", f"DisruptionTarget {why}", text)
    elif why == "TerminationByKubelet":
        pressure = "low on resource" in text + message or reason == "Evicted"
        _add(facts, "evicted" if pressure else "preemption", f"DisruptionTarget {why}", text)


def _read_container(container: dict[str, Any], facts: PodFacts) -> None:
    name = _text(container.get("name"))
    state, last = _mapping(container.get("state")), _mapping(container.get("lastState"))
    waiting = _mapping(state.get("waiting"))
    ended = _mapping(state.get("terminated")) or _mapping(last.get("terminated"))
    facts.started = facts.started or bool(ended or state.get("running") or container.get("started"))
    if ended:
        code = ended.get("exitCode")
        facts.exit_code = code if isinstance(code, int) and (facts.exit_code in (None, 0)) else facts.exit_code
        if ended.get("reason") == "OOMKilled":
            _add(facts, "host_oom", f"container {name}: OOMKilled", f"exit code {code}")
        elif text := _text(ended.get("message")):
            _from_message(facts, f"container {name}: {_text(ended.get('reason'))}", text)
    why = _text(waiting.get("reason"))
    if why in _IMAGE:
        _add(facts, "image_pull", f"container {name}: {why}", _text(waiting.get("message")))
    elif why in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        text = _text(waiting.get("message"))
        if not _from_message(facts, f"container {name}: {why}", text):
            _add(facts, "config_error", f"container {name}: {why}", text)


def _read_job(job: dict[str, Any], facts: PodFacts) -> None:
    for condition in _conditions(_mapping(job.get("status"))):
        if condition.get("type") in ("Failed", "FailureTarget") and condition.get("reason") == "DeadlineExceeded":
            _add(facts, "deadline", "Job DeadlineExceeded", _text(condition.get("message")))
        elif condition.get("type") == "Complete" and _true(condition):
            facts.exit_code = 0


def _from_message(facts: PodFacts, where: str, message: str) -> bool:
    """A container's termination message, read like a log."""
    signature = match_text(message)
    if signature is None:
        return False
    _add(facts, signature.outcome, where, message, signature.confidence)
    return True


def _add(facts: PodFacts, outcome: str, reason: str, message: str, confidence: Confidence = "high") -> None:
    text = f"{reason}: {message}" if message else reason
    said = OUTCOMES[outcome].sentence
    facts.verdicts.append(
        Verdict(
            outcome=outcome,
            confidence=confidence,
            evidence=(Evidence(file="pod", line=0, text=text[:1000]),),
            sentence=f"{said.rstrip('.')} ({reason}).",
        )
    )


def _items(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        document = document["items"]
    for item in document if isinstance(document, list) else [document]:
        if isinstance(item, dict):
            yield item


def _containers(status: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("containerStatuses", "initContainerStatuses"):
        yield from _mappings(status.get(key))


def _conditions(status: dict[str, Any]) -> list[dict[str, Any]]:
    return _mappings(status.get("conditions"))


def _true(condition: dict[str, Any]) -> bool:
    return str(condition.get("status")) == "True"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _get(value: Any, *keys: str) -> Any:
    for key in keys:
        value = _mapping(value).get(key)
    return value


def _text(value: Any) -> str:
    return " ".join(str(value).split()) if value else ""
