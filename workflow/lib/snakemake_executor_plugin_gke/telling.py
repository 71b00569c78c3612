"""The client's status lines: what changed, once; what waits, grouped by reason, with who said so and how often."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from .status import Phase, Reason, clock, job_of, newest, phase, waiting_reason

Json = dict[str, Any]
AGAIN_S = 600.0
"""A wait whose reason has not changed is told again after this long, with its new count."""
NAMED = 3
"""Runs named in a line about many."""


class Teller:
    """Says each thing once."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._told: dict[str, str] = {}
        self._waits: dict[tuple[str, ...], tuple[str, float]] = {}
        self._trouble: dict[str, str] = {}

    def line(self, text: str) -> None:
        """One line."""
        self._say(f"gke: {text}")

    def about(self, name: str, text: str) -> None:
        """One line about a run, unless it was the last one said about it."""
        if self._told.get(name) != text:
            self._told[name] = text
            self.line(text)

    def trouble(self, where: str, text: str) -> None:
        """Something does not answer; said when it begins and when its words change."""
        if self._trouble.get(where) != text:
            self._trouble[where] = text
            self.line(text)

    def well(self, where: str) -> None:
        """Whatever did not answer answers again."""
        if self._trouble.pop(where, None) is not None:
            self.line(f"the {where} answers again")

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


def explain(jobs: dict[str, Json], pods: Iterable[Json], events: Iterable[Json]) -> dict[str, Reason]:
    """Why each Job that is neither running nor over waits, by Job name."""
    of: dict[str, list[Json]] = {}
    for pod in pods:
        of.setdefault(job_of(pod), []).append(pod)
    listed = list(events)
    return {
        name: waiting_reason(newest(of.get(name, ())), listed, job)
        for name, job in jobs.items()
        if phase(job) in (Phase.WAITING, Phase.SUSPENDED)
    }


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
