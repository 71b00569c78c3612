"""What a Job's, pod's and event's JSON means for a person: pure functions, no clock, no network."""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Any

from harness.contract.exitcodes import PREEMPTED

Json = dict[str, Any]
NODE_LABEL = "batch.kubernetes.io/job-completion-index"
"""Label of an Indexed Job's pods."""
QUOTA, STOCK = r"QUOTA_EXCEEDED|GCE quota|[Qq]uota '", r"ZONE_RESOURCE_POOL_EXHAUSTED|out of resources"
"""Patterns of what Google says when the project may hold no more machines, and when a zone has none."""
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
    """The pod that explains how a Job ended. Among the newest pods of the nodes, the first that failed by itself, else
    node 0's."""
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


def is_ready(pod: Json | None) -> bool:
    """Whether a pod's containers run and answer."""
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c.get("status") == "True" for c in conditions)


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
