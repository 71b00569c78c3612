"""The client's status lines: each change once; waiting runs grouped by reason, with its source and count."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .settings import ExecutorSettings
from .status import (
    QUOTA,
    START_FAILURES,
    STOCK,
    Phase,
    by_node,
    clock,
    container_states,
    event_count,
    event_time,
    first_time,
    is_ready,
    job_of,
    nodes_of,
    phase,
)

Json = dict[str, Any]
LINE_CHARACTERS = 2000
AGAIN_S = 600.0
"""A wait whose reason has not changed is printed again after this long, with its new count."""
NAMED = 3
"""How many runs a line names; it counts the others."""


DECIDERS = {
    "autoscaler": ("FailedScaleUp", "TriggeredScaleUp", "NotTriggerScaleUp"),
    "scheduler": ("FailedScheduling", "Preempted"),
}
"""Component that decides about a waiting pod -> the reasons of its events; the most informative component first."""
JOB_REASONS = ("FailedCreate", "Pending")
"""Event reasons of the Job controller, and of a queue about its own object for a Job, that explain a missing pod."""
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


def inert(text: str) -> str:
    """Text of a bucket, a cluster or a record as one line that cannot move the cursor or pass for another line."""
    flat = "".join(c if c.isprintable() else " " for c in text)
    return flat if len(flat) <= LINE_CHARACTERS else f"{flat[:LINE_CHARACTERS]} ..."


class Teller:
    """Says each thing once."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._told: dict[str, str] = {}
        self._waits: dict[tuple[str, ...], tuple[str, float]] = {}
        self._trouble: dict[str, str] = {}

    def line(self, text: str) -> None:
        """Print a line. All output passes here, so this is where text from outside is made inert."""
        self._say(f"gke: {inert(text)}")

    def about(self, name: str, text: str) -> None:
        """Print a line about a run, unless it repeats the last one about it."""
        if self._told.get(name) != text:
            self._told[name] = text
            self.line(text)

    def trouble(self, where: str, text: str) -> None:
        """Report that something does not answer: when it begins and when the message changes."""
        if self._trouble.get(where) != text:
            self._trouble[where] = text
            self.line(text)

    def well(self, where: str) -> None:
        """Report that everything answers again."""
        if self._trouble.pop(where, None) is not None:
            self.line(f"the {where} answers again")

    def differences(self, words: str, jobs: int, idle: int, name: str, settings: ExecutorSettings) -> None:
        """Jobs that were made with other settings, of which `idle` have not started; `name` is one of those."""
        if settings.replace_waiting:
            does = f"{idle} have not started and are made anew; {jobs - idle} go on with what they have"
        elif idle:
            namespace = f" --namespace {settings.namespace}"
            does = (
                f"they keep it; to make the {idle} that have not started anew, add --gke-replace-waiting to the same "
                f"command (or one alone: kubectl delete job {name}{namespace})"
            )
        else:
            does = "they have started and go on with it"
        self.about(f"made with {words}", f"{jobs} Jobs were made with other settings ({words}): {does}")

    def waiting(self, reasons: dict[str, Reason]) -> None:
        """Runs that wait, by label; one line for all that wait for the same reason."""
        groups: dict[str, list[str]] = {}
        for label, reason in reasons.items():
            groups.setdefault(reason.text, []).append(label)
        now_s = time.monotonic()
        seen: dict[tuple[str, ...], tuple[str, float]] = {}
        for text, labels in groups.items():
            key = tuple(labels)
            told, at_s = self._waits.get(key, ("", 0.0))
            if told != text or now_s - at_s > AGAIN_S:
                at_s = now_s
                self.line(f"waiting: {_names(labels)}: {text}{_often([reasons[x] for x in labels])}")
            seen[key] = (text, at_s)
        self._waits = seen


def detached(runs: int, exist: int, recorded: int, unanswered: int) -> str:
    """What goes on without a client that leaves, and what the next client will do.

    Of its unfinished runs, `exist` have a Job and `recorded` have a result in the bucket; the creation of `unanswered`
    Jobs is under way.
    """
    unmade = runs - exist - recorded - unanswered
    does = [f"adopts {'them' if exist == runs else f'the {exist}'}"] if exist else []
    does += [f"makes the other {unmade}" if exist else f"makes all {unmade}"] if unmade else []
    does += [f"collects {recorded} results"] if recorded else []
    begun = f"{unanswered} more may exist: the API server has not answered yet; " if unanswered else ""
    missing = f", {unmade} were not made" if unmade and exist else ""
    jobs = f"{exist} Jobs go on{missing}" if exist else "no Job was made"
    return f"detached; {jobs}; {begun}the same command {' and '.join(does) or 'goes on'}"


def explain(jobs: dict[str, Json], pods: Iterable[Json] | None, events: Iterable[Json]) -> dict[str, Reason]:
    """Why each Job that is neither running nor over waits, by Job name; `pods` None: they may not be listed."""
    of: dict[str, list[Json]] = {}
    for pod in pods or ():
        of.setdefault(job_of(pod), []).append(pod)
    listed = list(events)
    return {
        name: waiting_reason(of.get(name, ()), listed, job, pods_known=pods is not None)
        for name, job in jobs.items()
        if phase(job) in (Phase.WAITING, Phase.SUSPENDED)
    }


def waiting_reason(pods: Iterable[Json], events: Iterable[Json], job: Json, *, pods_known: bool = True) -> Reason:
    """Why a Job is not running: why the newest pods of its nodes are not."""
    last, listed, nodes = by_node(pods), list(events), nodes_of(job)
    if phase(job) is Phase.SUSPENDED:
        return _without_pod("suspended: the queue has not admitted it", listed, job)
    if not last and not pods_known:
        return _of_unseen_pod(listed, job)
    waits = [node for node in range(nodes) if nodes == 1 or not is_ready(last.get(node))]
    reasons = {node: _of_pod(last.get(node), listed, job) for node in waits}
    if not reasons:
        return Reason("all its pods have just started")
    first = next((r for r in reasons.values() if r.stuck), next(iter(reasons.values())))
    same = [str(node) for node, reason in reasons.items() if reason.text == first.text]
    if len(same) == nodes:
        return first
    return replace(first, text=f"node{'s' * (len(same) > 1)} {', '.join(same)} of {nodes}: {first.text}")


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
    if status.get("phase") == "Running" and not is_ready(pod):
        return f"its pod on {node} runs but is not ready: the node may be lost"
    return f"starting on {node}"


def _names(labels: list[str]) -> str:
    named = ", ".join(labels[:NAMED])
    if len(labels) == 1:
        return named
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return f"{len(labels)} runs ({named}{more})"


def _often(reasons: list[Reason]) -> str:
    count, since = max(r.count for r in reasons), min(r.since for r in reasons)
    times = f"{count} times " if count > 1 else ""
    return f" ({times}since {clock(since)})" if since else ""
