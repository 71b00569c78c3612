"""All attempts of one client against one cluster and one bucket: look at both, then act on the difference.

Level-triggered: what to do follows from what is there now, never from what this client remembers
having done, so that a client that died anywhere is replaced by the next one without a trace.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec

from . import collect, status
from .errors import Refused, RemoteError, Unavailable
from .manifest import render_manifest, selector
from .settings import ExecutorSettings
from .status import Phase

RECORD = "record.json"
PARALLEL = 8
"""Requests under way at once while creating Jobs and fetching files."""
VANISHED_S = 60.0
"""Beyond its grace period, how long a deleted pod may take to deliver a last record."""
DAMAGED_POLLS = 3
"""Polls a record may contradict its files before the run is given up (a newer pod may be overwriting them)."""


@dataclass(slots=True)
class Attempt:
    """One Snakemake job on its way through the cluster."""

    spec: RunSpec
    folder: Path
    name: str = ""
    remote: str = ""
    seen: bool = False
    """Whether this client has seen or made its Job."""
    vanished_at_s: float | None = None
    damaged: int = 0
    said: str = ""
    """The last status line printed about it."""

    def __post_init__(self) -> None:
        self.name = self.spec.job_name()
        self.remote = f"{self.spec.identity.study}/{self.spec.path()}"

    @property
    def label(self) -> str:
        """How status lines call it."""
        i = self.spec.identity
        tail = f" attempt {i.attempt}" if i.attempt > 1 else ""
        return f"{self.spec.platform.name} {i.config} {i.arm} r{i.repeat}{tail}"


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that needs no more polls: collected, or with the error that ended it."""

    attempt: Attempt
    error: str | None = None


class Action(Enum):
    """What an attempt needs next."""

    COLLECT = "collect"
    CREATE = "create"
    WAIT = "wait"
    VANISHED = "vanished"
    AUTOPSY = "autopsy"


def decide(seen: bool, job: dict[str, Any] | None, recorded: bool) -> Action:
    """What an attempt needs, from its Job (listed first) and its record (listed second)."""
    if recorded:
        return Action.COLLECT
    if job is None:
        return Action.VANISHED if seen else Action.CREATE
    # Jobs are listed before the bucket: a Job seen as over has no record on the way.
    return Action.AUTOPSY if status.phase(job) in (Phase.COMPLETE, Phase.FAILED) else Action.WAIT


class ClusterLike(Protocol):
    """The part of the Kubernetes client that the fleet needs."""

    def jobs(self, selector: str) -> dict[str, dict[str, Any]]: ...

    def create(self, manifest: dict[str, Any]) -> bool: ...

    def delete(self, name: str) -> None: ...


class Fleet:
    """Submits, adopts, watches and collects."""

    def __init__(self, cluster: Any, bucket: Any, settings: ExecutorSettings, say: Callable[[str], object]) -> None:
        self._cluster, self._bucket, self._settings, self._say = cluster, bucket, settings, say
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()
        self._trouble: str | None = None

    def submit(self, attempts: Sequence[Attempt], *, must_succeed: bool = False) -> list[Ended]:
        """Take attempts over: collect, adopt or create each. Raises Refused; Unavailable only if `must_succeed`."""
        with self._lock:
            self._attempts.update({a.name: a for a in attempts})
            try:
                return self._reconcile(attempts, must_succeed=must_succeed)
            except Unavailable as error:
                if must_succeed:
                    raise
                self._troubled(error)
                return []

    def poll(self, names: Iterable[str]) -> list[Ended]:
        """Look once at the cluster and the bucket, and act; trouble with either ends no attempt."""
        with self._lock:
            try:
                ended = self._reconcile([self._attempts[n] for n in names])
            except RemoteError as error:
                self._troubled(error)
                return []
            if self._trouble is not None:
                self._trouble = None
                self._say("gke: cluster and bucket answer again")
            return ended

    def cancel(self, names: Iterable[str]) -> None:
        """Delete Jobs; those that cannot be deleted are named."""
        for name in names:
            try:
                self._cluster.delete(name)
            except RemoteError as error:
                self._say(f"gke: {name} goes on: {error}")

    def _troubled(self, error: RemoteError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            self._say(f"gke: {error}; every Job is kept, asking again every {self._settings.poll_interval} s")

    def _reconcile(self, attempts: Sequence[Attempt], *, must_succeed: bool = False) -> list[Ended]:
        studies = {a.spec.identity.study for a in attempts}
        jobs = self._cluster.jobs(selector(studies))
        blobs: dict[str, Any] = {}
        for study in sorted(studies):
            blobs |= self._bucket.list(study, (RECORD,))
        todo: dict[Action, list[Attempt]] = {action: [] for action in Action}
        for attempt in attempts:
            job = jobs.get(attempt.name)
            todo[decide(attempt.seen, job, f"{attempt.remote}/{RECORD}" in blobs)].append(attempt)
            if job is not None:
                attempt.seen, attempt.vanished_at_s = True, None
        with ThreadPoolExecutor(PARALLEL) as pool:
            ended = [e for e in pool.map(self._collect, todo[Action.COLLECT]) if e is not None]
            ended += [e for e in pool.map(self._create, todo[Action.CREATE]) if e is not None]
        ended += [e for a in todo[Action.VANISHED] if (e := self._vanished(a))]
        ended += [self._autopsy(a, jobs[a.name]) for a in todo[Action.AUTOPSY]]
        return ended

    def _create(self, attempt: Attempt) -> Ended | None:
        try:
            made = self._cluster.create(render_manifest(attempt.spec, self._settings))
        except (Refused, SpecError) as error:
            return Ended(attempt, f"{attempt.name}: {error}")
        except Unavailable as error:
            self._troubled(error)
            return None
        attempt.seen = True
        if not made:
            self._say(f"gke: {attempt.label}: adopted {attempt.name}, which another client made just now")
        return None

    def _collect(self, attempt: Attempt) -> Ended | None:
        try:
            record = collect.collect(self._bucket, attempt.remote, RECORD, attempt.folder, attempt.spec)
        except Unavailable as error:
            self._troubled(error)
            return None
        except (collect.Damaged, Refused) as error:
            attempt.damaged += 1
            return Ended(attempt, f"{attempt.name}: {error}") if attempt.damaged >= DAMAGED_POLLS else None
        self._say(f"gke: {attempt.label}: finished: {record.outcome}")
        return Ended(attempt)

    def _vanished(self, attempt: Attempt) -> Ended | None:
        now_s = time.monotonic()
        if attempt.vanished_at_s is None:
            attempt.vanished_at_s = now_s
        if now_s - attempt.vanished_at_s < self._settings.grace_period + VANISHED_S:
            return None
        return Ended(attempt, f"{attempt.name}: its Job was deleted and left no record; the same command makes it anew")

    def _autopsy(self, attempt: Attempt, job: dict[str, Any]) -> Ended:
        return Ended(attempt, f"{attempt.name}: {status.failure_words(job)}, and no record in the bucket")
