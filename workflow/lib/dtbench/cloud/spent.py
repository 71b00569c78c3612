"""What a study on GKE cost: receipts of scale-ups, and node-seconds from each pod's start to its release."""

import datetime
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtbench.cloud.objects import IDLE_MINUTES
from dtbench.results.runs import Loaded
from dtbench.study.platforms import Price

Json = dict[str, Any]
RECEIPTS, FACTS = "receipts.json", "k8s.json"
SECONDS_PER_HOUR, TOKENS = 3600, 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One pod on its node, in seconds since 1970."""

    node: str
    requested_s: float
    """When its Job was made."""
    scheduled_s: float
    """When it got its node, which is paid for from then on."""
    started_s: float
    """When its container ran: volumes, driver and image are there."""
    ended_s: float
    offer: str = ""
    """Row of the price list for the node, found by the node's labels; empty: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What the runs of one cell, or all of a platform (`config` empty), held."""

    platform: str
    config: str
    arm: str
    pods: int
    """Preempted and failed ones too."""
    queued_s: float
    """Until a node was there, all pods together."""
    start_s: float
    """On a node before the container ran."""
    node_s: float
    """Node-seconds, of a platform with idle time between pods and the tail after the last."""
    idle_s: float
    tokens: float
    """Tokens trained in timed windows of finished runs."""
    paid_usd: float | None
    """Dollars at the price of how each node was bought, by its labels, else by the offer asked for; None: a price is
    unknown."""
    list_usd: float | None
    """Dollars at the on-demand price; None: that price is unknown."""

    @property
    def usd_per_mtoken(self) -> float | None:
        """Dollars paid for a million tokens of the timed windows, everything around them included."""
        return None if self.paid_usd is None or not self.tokens else self.paid_usd / self.tokens * TOKENS


def read_receipts(results: Path) -> list[Json]:
    """The receipts of a study: what the cloud answered to requests for machines; empty when there are none."""
    try:
        rows = json.loads((results / RECEIPTS).read_text(encoding="utf-8"))
        return [row | {"times": sum(row["seen"].values())} for row in rows]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def receipt_lines(rows: Iterable[Json]) -> list[str]:
    """Receipts as text, one line a platform, zone and answer."""
    words = {"asked": "machine asked for", "quota": "refused, quota", "stock": "refused, no stock", "queue": "queued"}
    return [
        f"{row['platform']}{' ' + row['zone'] if row['zone'] else ''}: {words.get(row['answer'], row['answer'])} "
        f"{row['times']} times, first {row['first']}, last {row['last']}: {row['words']}"
        for row in rows
    ]


def held(facts: Json, delivered: str | None = None) -> list[Held]:
    """Each pod of a Job that got a node, by what Kubernetes knew.

    The last pod may still have been ending when it was looked at: it then ends when its record says, at `delivered`.
    """
    found = []
    pods = sorted(facts.get("pods") or (), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    for index, pod in enumerate(pods):
        status = pod.get("status") or {}
        conditions = {c["type"]: c.get("lastTransitionTime") for c in status.get("conditions") or ()}
        running = [c.get("state", {}).get("running") or {} for c in status.get("containerStatuses") or ()]
        states = [c.get("state", {}).get("terminated") or {} for c in status.get("containerStatuses") or ()]
        ended = [s["finishedAt"] for s in states if s.get("finishedAt")]
        if not ended and (taken := conditions.get("DisruptionTarget") or pod["metadata"].get("deletionTimestamp")):
            ended = [taken]  # its node went away before the kubelet could say how it ended
        if not ended and delivered and index == len(pods) - 1:
            ended = [delivered]
        # A later pod of the Job was asked for when it was made.
        asked = (facts.get("job") or {}).get("created") if index == 0 else None
        started = [s["startedAt"] for s in (*states, *running) if s.get("startedAt")]
        # When the scheduler bound it to its node; else when the node's kubelet took it.
        scheduled = conditions.get("PodScheduled") or status.get("startTime") or min(started, default=None)
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or not scheduled or not ended:
            continue
        found.append(
            Held(
                node=node,
                requested_s=_seconds(asked or pod["metadata"]["creationTimestamp"]),
                scheduled_s=_seconds(scheduled),
                started_s=_seconds(min(started, default=scheduled)),
                ended_s=_seconds(max(ended)),
                offer=_bought((facts.get("bought") or {}).get(node) or {}),
            )
        )
    return found


def _bought(labels: dict[str, str]) -> str:
    """The price list's row for a node with these labels; empty when they do not say."""
    machine, zone = labels.get("node.kubernetes.io/instance-type"), labels.get("topology.kubernetes.io/zone", "")
    spot = (
        labels.get("cloud.google.com/gke-spot") == "true" or labels.get("cloud.google.com/gke-provisioning") == "spot"
    )
    flex = labels.get("cloud.google.com/gke-flex-start") == "true"
    if not machine or not zone:
        return ""
    return f"{machine}/{zone.rpartition('-')[0]}/{'spot' if spot else 'flex-start' if flex else 'on-demand'}"


def spent(loaded: Loaded, results: Path, prices: dict[str, Price]) -> list[Spent]:
    """Each cell's and then each platform's nodes, by the facts beside its records; empty without a run on GKE."""
    cells: list[Spent] = []
    nodes: dict[str, list[Held]] = defaultdict(list)
    offers: dict[str, str | None] = {}
    for cell, runs in loaded:
        attempts = [attempt for run in runs for attempt in run.attempts]
        pods = [pod for a in attempts for pod in held(_facts(results / a.path / FACTS), a.record.ended_at)]
        if not pods:
            continue
        record = attempts[-1].record
        offers[cell.platform] = record.spec.offer.price
        nodes[cell.platform] += pods
        tokens = sum(
            float(a.record.spec.tokens_per_step * a.record.spec.protocol.timed_steps)
            for a in attempts
            if a.record.outcome == "ok"
        )
        cells.append(_spent(cell.platform, cell.config, cell.arm, pods, 0.0, tokens, offers[cell.platform], prices))
    platforms = []
    for platform, pods in nodes.items():
        tokens = sum(row.tokens for row in cells if row.platform == platform)
        platforms.append(_spent(platform, "", "", pods, idle_s(pods), tokens, offers[platform], prices))
    return cells + platforms


SPENT_HEADS = (
    "platform", "config", "arm", "pods", "queued h", "starting h", "node-hours", "paid $", "on demand $",
    "paid $/Mtoken",
)  # fmt: skip


def spent_rows(found: Iterable[Spent]) -> list[list[str]]:
    """The table of `SPENT_HEADS` as text; a hyphen stands for an unknown price."""

    def shown(value: float | None, digits: int = 2) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    return [
        [
            *(row.platform, row.config or "all", row.arm or "all", str(row.pods)),
            *(shown(s / SECONDS_PER_HOUR) for s in (row.queued_s, row.start_s, row.node_s)),
            *(shown(row.paid_usd), shown(row.list_usd), shown(row.usd_per_mtoken, 4)),
        ]
        for row in found
    ]


def _spent(
    platform: str, config: str, arm: str, pods: list[Held], idle: float, tokens: float,
    offer: str | None, prices: dict[str, Price],
) -> Spent:  # fmt: skip
    busy_s = sum(pod.ended_s - pod.scheduled_s for pod in pods)
    node_s = busy_s + idle
    # Idle time costs as much as the rest.
    shares = [(pod.offer or offer or "", (pod.ended_s - pod.scheduled_s) * node_s / max(busy_s, 1e-9)) for pod in pods]
    return Spent(
        platform=platform,
        config=config,
        arm=arm,
        pods=len(pods),
        queued_s=sum(pod.scheduled_s - pod.requested_s for pod in pods),
        start_s=sum(pod.started_s - pod.scheduled_s for pod in pods),
        node_s=node_s,
        idle_s=idle,
        tokens=tokens,
        paid_usd=_usd(shares, prices),
        list_usd=_usd([(f"{row.rpartition('/')[0]}/on-demand", seconds) for row, seconds in shares], prices),
    )


def _usd(shares: Iterable[tuple[str, float]], prices: dict[str, Price]) -> float | None:
    """Dollars of rows held for so many seconds; None when one of them has no price."""
    total = 0.0
    for row, seconds in shares:
        if row not in prices:
            return None
        total += prices[row].usd_per_hour * seconds / SECONDS_PER_HOUR
    return total


def idle_s(pods: Iterable[Held]) -> float:
    """Seconds for which nodes held no pod: between two pods of a node, and after its last until GKE removes it.

    The tail is GKE's rule, not measured: no pod is there to see it.
    """
    by_node: dict[str, list[Held]] = defaultdict(list)
    for pod in pods:
        by_node[pod.node].append(pod)
    idle = 0.0
    for mine in by_node.values():
        mine.sort(key=lambda pod: pod.scheduled_s)
        busy_until = mine[0].ended_s
        for pod in mine[1:]:
            idle += max(0.0, pod.scheduled_s - busy_until)
            busy_until = max(busy_until, pod.ended_s)
        idle += IDLE_MINUTES * 60
    return idle


def _facts(path: Path) -> Json:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()
