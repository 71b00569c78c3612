"""What a Job's, pod's and event's JSON means for a person: pure functions, no clock, no network."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from harness.contract.exitcodes import PREEMPTED

Json = dict[str, Any]
NODE_LABEL = "batch.kubernetes.io/job-completion-index"
"""Label of an Indexed Job's pods."""
DECIDERS = {
    "autoscaler": ("FailedScaleUp", "TriggeredScaleUp", "NotTriggerScaleUp"),
    "scheduler": ("FailedScheduling", "Preempted"),
}
"""Who decides about a waiting pod -> the reasons of its events; the most informative first."""
JOB_REASONS = ("FailedCreate", "Pending")
"""Event reasons of the Job controller, and of a queue about its own object for a Job, that explain a missing pod."""
QUOTA, STOCK = r"QUOTA_EXCEEDED|GCE quota|[Qq]uota '", r"ZONE_RESOURCE_POOL_EXHAUSTED|out of resources"
"""Patterns of what Google says when the project may hold no more machines, and when a zone has none."""
ADVICE = (
    (
        r"must specify .*limits\.cpu",
        "the quota counts CPU limits, which these pods do not set: take limits.cpu out of it",
    ),
    (r"m(aximum|inimum) \S+ usage per (Container|Pod)", "a LimitRange of the namespace allows other sizes"),
    (r"violates PodSecurity|admission webhook", "a policy of the cluster forbids the pod"),
    (QUOTA, "the project's quota: ask for more under IAM and admin, Quotas"),
    (STOCK, "no stock in the zone: wait, or add pools in other zones"),
)
"""Pattern of an event's message -> what to do about the wait."""
START_FAILURES = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
)  # fmt: skip
"""Waiting reasons of a container that will not start unless somebody changes something."""


class Phase(Enum):
    """Where a Job stands."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    COMPLETE = "complete"
    FAILED = "failed"


def phase(job: Json) -> Phase:
    """Where a Job stands, from its own status alone."""
    status = job.get("status") or {}
    met = {c["type"] for c in status.get("conditions") or () if c.get("status") == "True"}
    if "Complete" in met:
        return Phase.COMPLETE
    if "Failed" in met:
        return Phase.FAILED
    if job["metadata"].get("deletionTimestamp"):
        return Phase.DELETING
    if "Suspended" in met or job["spec"].get("suspend"):
        return Phase.SUSPENDED
    ready = status.get("ready") or 0
    return Phase.RUNNING if ready and ready + (status.get("succeeded") or 0) >= nodes_of(job) else Phase.WAITING


def nodes_of(job: Json) -> int:
    """How many pods a Job runs at once: one a node."""
    return int((job.get("spec") or {}).get("parallelism") or 1)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a pod waits."""

    text: str
    """Message of whoever decides: scheduler, autoscaler, kubelet, queue."""
    count: int = 1
    """How often the event occurred."""
    since: str = ""
    """UTC timestamp of its first occurrence, by the cluster's clock."""
    stuck: bool = False
    """True when the pod has a node but its container cannot start."""


def job_of(pod: Json) -> str:
    """Name of the Job a pod belongs to."""
    name: str = (pod["metadata"].get("labels") or {}).get("batch.kubernetes.io/job-name", "")
    return name


def newest(pods: Iterable[Json]) -> Json | None:
    """The pod created last, of one Job."""
    return max(pods, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]), default=None)


def node_of(pod: Json) -> int:
    """Which node of its run a pod is; 0 for the one pod of a run on one node."""
    return int((pod["metadata"].get("labels") or {}).get(NODE_LABEL) or 0)


def by_node(pods: Iterable[Json]) -> dict[int, Json]:
    """The newest pod of each node of one Job."""
    of: dict[int, list[Json]] = {}
    for pod in pods:
        of.setdefault(node_of(pod), []).append(pod)
    return {node: last for node, mine in sorted(of.items()) if (last := newest(mine))}


def culprit(pods: Iterable[Json]) -> Json | None:
    """The pod that explains how a Job ended: of each node's newest the first that failed by itself, else node 0's."""
    last = by_node(pods)

    def failed_at(pod: Json) -> str | None:
        for state in container_states(pod):
            if (state.get("waiting") or {}).get("reason") in START_FAILURES:
                return ""
            if (ended := state.get("terminated") or {}).get("exitCode") not in (None, 0, PREEMPTED):
                return str(ended.get("finishedAt") or "")
        return None

    failed = {node: at for node, pod in last.items() if (at := failed_at(pod)) is not None}
    return last[min(failed, key=lambda node: failed[node])] if failed else last.get(0) or newest(last.values())


def roll_call(pods: Iterable[Json], nodes: int) -> list[str]:
    """What became of each node of a run, a line each."""
    last = by_node(pods)
    return [f"node {node}: {_became(last.get(node))}" for node in range(nodes)]


def _became(pod: Json | None) -> str:
    if pod is None:
        return "no pod"
    host, phase_now = pod["spec"].get("nodeName"), (pod.get("status") or {}).get("phase")
    ended = next((s["terminated"] for s in container_states(pod) if s.get("terminated")), None)
    how = f"{ended.get('reason', 'ended')}, exit status {ended.get('exitCode')}" if ended else phase_now or "unknown"
    return f"{pod['metadata']['name']}: {f'on {host}: {how}' if host else 'never came: no node was found for it'}"


def waiting_reason(pods: Iterable[Json], events: Iterable[Json], job: Json, *, pods_known: bool = True) -> Reason:
    """Why a Job is not running: why the newest pods of its nodes are not."""
    last, listed, nodes = by_node(pods), list(events), nodes_of(job)
    if phase(job) is Phase.SUSPENDED:
        return _without_pod("suspended: the queue has not admitted it", listed, job)
    if not last and not pods_known:
        return _of_unseen_pod(listed, job)
    reasons = {
        node: _of_pod(last.get(node), listed, job) for node in range(nodes) if nodes == 1 or not _ready(last.get(node))
    }
    if not reasons:
        return Reason("all its pods have just started")
    first = next((r for r in reasons.values() if r.stuck), next(iter(reasons.values())))
    same = [str(node) for node, reason in reasons.items() if reason.text == first.text]
    if len(same) == nodes:
        return first
    return replace(first, text=f"node{'s' * (len(same) > 1)} {', '.join(same)} of {nodes}: {first.text}")


def _ready(pod: Json | None) -> bool:
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c.get("status") == "True" for c in conditions)


def _of_pod(pod: Json | None, events: Iterable[Json], job: Json) -> Reason:
    if pod is None:
        text = "no pod yet: the Job controller makes one, after a pause if it has lost one"
        return _without_pod(text, events, job)
    created = pod["metadata"]["creationTimestamp"]
    for state in container_states(pod):
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in START_FAILURES:
            return Reason(f"{waiting['reason']}: {waiting.get('message', '')}".strip(": "), since=created, stuck=True)
    if node := pod["spec"].get("nodeName"):
        return Reason(_on_node(pod, node), since=created)
    about = [e for e in events if e["involvedObject"].get("uid") == pod["metadata"]["uid"]]
    if said := _last_words(about, DECIDERS.values()):
        text = "; ".join(f"{e['reason']}: {e.get('message', '')}" for e in said)
        return Reason(text + advice(text), event_count(said[0]), first_time(said[0]) or created)
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("status") != "True":
            text = f"{condition.get('reason', 'Unscheduled')}: {condition.get('message', '')}".strip(": ")
            return Reason(text, since=condition.get("lastTransitionTime") or created)
    return Reason("waiting for the scheduler", since=created)


def _without_pod(text: str, events: Iterable[Json], job: Json) -> Reason:
    """Why a Job has no pod: the last event about it or about its object in a queue (Kueue: job-<name>-<hash>)."""
    name, made = job["metadata"]["name"], job["metadata"]["creationTimestamp"]
    about = [
        e
        for e in events
        if e["involvedObject"].get("name") == name or e["involvedObject"].get("name", "").startswith(f"job-{name}-")
    ]
    said = _last_words(about, ([reason] for reason in JOB_REASONS))
    if not said:
        return Reason(text, since=made)
    # Each refused pod has another name: leave it out, so that equal reasons look equal.
    words = "; ".join(
        f"{e['reason']}: " + re.sub(r'pods? "[^"]*" is forbidden', "pod is forbidden", e.get("message", ""))
        for e in said
    )
    return Reason(
        f"{text.partition(':')[0]}: {words}{advice(words)}", event_count(said[0]), first_time(said[0]) or made
    )


def _of_unseen_pod(events: Iterable[Json], job: Json) -> Reason:
    """Why a Job's pod does not run, from events alone: this account may not list pods."""
    start = f"{job['metadata']['name']}-"
    listed = list(events)
    said = _last_words((e for e in listed if e["involvedObject"].get("name", "").startswith(start)), DECIDERS.values())
    if not said:
        return _without_pod("not running: without the right to list pods nobody can say more", listed, job)
    text = "; ".join(f"{e['reason']}: {e.get('message', '')}" for e in said)
    return Reason(text + advice(text), event_count(said[0]), first_time(said[0]))


def _last_words(events: Iterable[Json], deciders: Iterable[Sequence[str]]) -> list[Json]:
    """The last event of each decider, in the order of the deciders; without those that have none."""
    listed = list(events)
    last = (max((e for e in listed if e.get("reason") in d), key=event_time, default=None) for d in deciders)
    return [event for event in last if event is not None]


def advice(words: str) -> str:
    """What to do about a wait, in brackets; empty when no pattern matches the message."""
    found = [text for pattern, text in ADVICE if re.search(pattern, words)]
    return f" [{'; '.join(found)}]" if found else ""


def _on_node(pod: Json, node: str) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return f"its pod on {node} is ending"
    status = pod.get("status") or {}
    if status.get("phase") == "Running" and not _ready(pod):
        return f"its pod on {node} runs but is not ready: the node may be lost"
    return f"starting on {node}"


def container_states(pod: Json) -> list[Json]:
    """The current state of each container of a pod."""
    status = pod.get("status") or {}
    return [c.get("state") or {} for c in status.get("containerStatuses") or ()]


def event_time(event: Json) -> str:
    """When an event was last seen; both event APIs, one clock format."""
    series = event.get("series") or {}
    return series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or ""


def first_time(event: Json) -> str:
    """When an event was first seen."""
    return event.get("firstTimestamp") or event.get("eventTime") or ""


def event_count(event: Json) -> int:
    """How often an event was seen."""
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def receipts(jobs: dict[str, Json], events: Iterable[Json]) -> list[Json]:
    """What was asked of the cloud for each platform and zone, and what it refused, in its own words.

    `jobs` by name. One row for each platform, zone and answer; `seen` counts every event once, however often it is
    listed: `join_receipts` brings rows of several looks together.
    """
    found: list[Json] = []
    for event in events:
        job = jobs.get(_job_about(event, jobs))
        answer = _answer(event)
        if job is None or answer is None:
            continue
        words = " ".join(str(event.get("message", "")).split())[:500]
        zones = re.findall(r"zones/([a-z]+-[a-z0-9-]+)", words) or re.findall(
            r"\b[a-z]+-[a-z]+\d+-[a-z]\b", words.partition("associated")[0]
        )
        seen = {event["metadata"]["uid"]: event_count(event)}
        first, last = first_time(event) or event_time(event), event_time(event)
        platform = (job["metadata"].get("labels") or {}).get("dtbench/platform", "")
        row = {"platform": platform, "answer": answer, "words": words, "first": first, "last": last, "seen": seen}
        found = join_receipts(found, [row | {"zone": zone} for zone in sorted(set(zones)) or [""]])
    return found


def join_receipts(earlier: Iterable[Json], later: Iterable[Json]) -> list[Json]:
    """Rows of both, one for each platform, zone and answer, with the words that were said last."""
    joined: dict[tuple[str, ...], Json] = {}
    for row in (*earlier, *later):
        key = row["platform"], row["zone"], row["answer"]
        old = joined.get(key, row)
        seen = {uid: max(row["seen"].get(uid, 0), old["seen"].get(uid, 0)) for uid in old["seen"] | row["seen"]}
        joined[key] = max(old, row, key=lambda r: r["last"]) | {
            "first": min(old["first"], row["first"]), "last": max(old["last"], row["last"]), "seen": seen,
        }  # fmt: skip
    return [joined[key] for key in sorted(joined)]


def _answer(event: Json) -> str | None:
    """What an event says about a request for a machine, in a word; None when it says nothing about one."""
    words = event.get("message", "")
    match event.get("reason"):
        case "TriggeredScaleUp":
            return "asked"
        case "FailedScaleUp":
            return "quota" if re.search(QUOTA, words) else "stock" if re.search(STOCK, words) else "failed"
        case "NotTriggerScaleUp":
            return "no pool fits"
        case "Pending" if event["involvedObject"].get("kind") == "Workload":
            return "queue"
    return None


def _job_about(event: Json, jobs: dict[str, Json]) -> str:
    """Name of the Job whose pod, or whose Workload (Kueue: job-<name>-<hash>), an event is about."""
    start = event["involvedObject"].get("name", "").rpartition("-")[0]
    # Pods of an Indexed Job have their index between the two.
    return next((n for n in (start, start.removeprefix("job-"), start.rpartition("-")[0]) if n in jobs), "")


def clock(timestamp: str) -> str:
    """`2026-11-30T10:02:11Z` as `11-30 10:02Z`."""
    return f"{timestamp[5:10]} {timestamp[11:16]}Z" if len(timestamp) >= 16 else timestamp
