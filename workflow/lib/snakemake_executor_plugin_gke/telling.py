"""The client's status lines: each change once; waiting runs grouped by reason, with its source and count."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from .settings import ExecutorSettings
from .status import Phase, Reason, clock, job_of, phase, waiting_reason

Json = dict[str, Any]
LINE_CHARACTERS = 2000
AGAIN_S = 600.0
"""A wait whose reason has not changed is printed again after this long, with its new count."""
NAMED = 3
"""How many runs a line names; it counts the others."""


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
