"""All attempts of one client against one cluster and one bucket: look at both, then act on the difference.

Level-triggered: what to do follows from what is there now, never from what this client remembers
having done, so that a client that died anywhere is replaced by the next one without a trace.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

from harness.contract.errors import SpecError
from harness.contract.record import Record

from . import autopsy, collect, status
from .attempt import PROGRESS, RECORD, Action, Attempt, Ended, decide, last_pod_record
from .errors import Expired, Full, Refused, RemoteError, Unavailable
from .manifest import render_manifest, selector
from .settings import ExecutorSettings
from .status import Phase
from .telling import Teller, explain

Json = dict[str, Any]
PARALLEL = 8
"""Requests under way at once while creating Jobs and fetching files."""
VANISHED_S, NEVER_RAN_S = 60.0, 5.0
"""Beyond its grace period, how long the pod of a deleted Job may take to deliver a last record; and if none ran."""
DAMAGED_POLLS = 3
"""Polls in which an attempt's end makes no sense before it is given up: a record that contradicts its files."""


class Fleet:
    """Submits, adopts, watches and collects."""

    def __init__(self, cluster: Any, bucket: Any, settings: ExecutorSettings, say: Callable[[str], object]) -> None:
        self._cluster, self._bucket, self._settings = cluster, bucket, settings
        self._tell = Teller(say)
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()
        self._explained_at_s = float("-inf")
        self._hurt = False
        """Whether anything failed to answer in this poll."""

    def submit(self, attempts: Sequence[Attempt], *, must_succeed: bool = False) -> list[Ended]:
        """Take attempts over: collect, adopt or create each. Raises Refused; Unavailable only if `must_succeed`."""
        with self._lock:
            self._attempts.update({a.name: a for a in attempts})
            try:
                return self._reconcile(attempts, first=True, must_succeed=must_succeed)
            except Unavailable as error:
                if must_succeed:
                    raise
                self._troubled(error)
                return []

    def poll(self, names: Iterable[str]) -> list[Ended]:
        """Look once at the cluster and the bucket, and act; trouble with either ends no attempt."""
        with self._lock:
            self._hurt = False
            try:
                return self._reconcile([self._attempts[n] for n in names])
            except RemoteError as error:
                self._troubled(error)
                return []
            finally:
                if not self._hurt:
                    self._tell.well("cluster or bucket")

    def cancel(self, names: Iterable[str]) -> None:
        """Delete Jobs; those that cannot be deleted are named."""

        def delete(name: str) -> None:
            try:
                self._cluster.delete(name)
            except RemoteError as error:
                self._tell.line(f"{name} goes on: {error}")

        with ThreadPool(PARALLEL) as pool:
            pool.map(delete, names, 1)

    def calls(self) -> dict[str, int]:
        """Requests made so far, by what was asked."""
        return {**self._cluster.calls, **{f"bucket {k}": n for k, n in self._bucket.calls.items()}}

    def _troubled(self, error: RemoteError | OSError) -> None:
        self._hurt = True
        again = f"every Job is kept, asking again every {self._settings.poll_interval} s"
        self._tell.trouble("cluster or bucket", f"{error}; {again}")

    def _reconcile(
        self, attempts: Sequence[Attempt], *, first: bool = False, must_succeed: bool = False
    ) -> list[Ended]:
        studies = {a.spec.identity.study for a in attempts}
        jobs = self._cluster.jobs(selector(studies))
        blobs: Json = {}
        for study in sorted(studies):
            blobs |= self._bucket.list(study, (RECORD, PROGRESS))
        todo: dict[Action, list[Attempt]] = {action: [] for action in Action}
        for attempt in attempts:
            job = jobs.get(attempt.name)
            todo[decide(attempt.seen, job, f"{attempt.remote}/{RECORD}" in blobs)].append(attempt)
            if job is not None:
                attempt.seen, attempt.vanished_at_s = True, None
                attempt.ran |= status.phase(job) is Phase.RUNNING
        if first:
            made, kept, done = (len(todo[a]) for a in (Action.CREATE, Action.WAIT, Action.COLLECT))
            self._tell.line(f"{len(attempts)} runs: {made} Jobs to create, {kept} to adopt, {done} results to collect")
        full = threading.Event()
        # Daemon threads: a client that detaches does not wait for a request that hangs.
        with ThreadPool(PARALLEL) as pool:
            ended = pool.map(
                self._safely(lambda a: self._collect(a, RECORD, jobs.get(a.name))), todo[Action.COLLECT], 1
            )
            ended += pool.map(lambda a: self._create(a, full, must_succeed), todo[Action.CREATE], 1)
        ended += map(self._safely(lambda a: self._vanished(a, blobs)), todo[Action.VANISHED])
        ended += map(self._safely(lambda a: self._over(a, jobs[a.name], blobs)), todo[Action.AUTOPSY])
        held = {a.label: status.Reason(a.held) for a in todo[Action.CREATE] if a.held and not a.seen}
        try:
            ended += self._explain(todo[Action.WAIT], jobs, blobs, held)
        except RemoteError as error:  # an explanation that fails must not lose what has ended
            self._troubled(error)
        return [e for e in ended if e is not None]

    def _safely(self, act: Callable[[Attempt], Ended | None]) -> Callable[[Attempt], Ended | None]:
        """An act about one attempt of which no surprise keeps the others from their ends."""

        def safe(attempt: Attempt) -> Ended | None:
            try:
                return act(attempt)
            except (Unavailable, Expired, OSError) as error:  # OSError: the disk of this machine
                self._troubled(error)
                return None
            except Exception as error:
                attempt.damaged += 1
                known = isinstance(error, RemoteError)
                words = str(error) if known else f"{type(error).__name__}: {error}"
                return self._failed(attempt, words) if attempt.damaged >= DAMAGED_POLLS else None

        return safe

    def _create(self, attempt: Attempt, full: threading.Event, must_succeed: bool) -> Ended | None:
        if full.is_set() and attempt.held:
            return None
        try:
            made = self._cluster.create(render_manifest(attempt.spec, self._settings))
        except Full as error:
            if must_succeed:
                raise
            full.set()
            attempt.held = str(error)
            return None
        except (Unavailable, Expired) as error:
            if must_succeed:
                raise
            self._troubled(error)
            return None
        except (Refused, SpecError) as error:
            return self._failed(attempt, str(error))
        attempt.seen = True
        if not made:
            self._tell.about(attempt.name, f"adopted: {attempt.label}: another client has just made its Job")
        return None

    def _collect(self, attempt: Attempt, record_name: str, job: Json | None) -> Ended:
        record = collect.collect(self._bucket, attempt.remote, record_name, attempt.folder, attempt.spec)
        if record.outcome != "ok" and job is not None:
            with contextlib.suppress(Refused):  # an account that may not see pods or events still gets its records
                facts = autopsy.gather(self._cluster, attempt.name, job, with_log=False)
                collect.write_json(attempt.folder / "k8s.json", facts)
        return self._finished(attempt, record)

    def _vanished(self, attempt: Attempt, blobs: Json) -> Ended | None:
        if attempt.vanished_at_s is None:
            attempt.vanished_at_s = time.monotonic()
        if last := last_pod_record(attempt, blobs):
            return self._collect(attempt, last, None)
        patience_s = self._settings.grace_period + VANISHED_S if attempt.ran else NEVER_RAN_S
        if time.monotonic() - attempt.vanished_at_s < patience_s:
            return None
        return self._failed(attempt, "its Job was deleted and left no record; the same command creates it anew")

    def _over(self, attempt: Attempt, job: Json, blobs: Json) -> Ended | None:
        if last := last_pod_record(attempt, blobs):
            return self._collect(attempt, last, job)
        try:
            facts = autopsy.gather(self._cluster, attempt.name, job)
        except Refused as error:
            return self._failed(attempt, f"{status.failure_words(job)}; no record, no autopsy: {error}")
        return self._concluded(attempt, facts)

    def _concluded(self, attempt: Attempt, facts: Json) -> Ended:
        from .cloudlog import read_log

        autopsy.fill_log(facts, read_log)
        record = autopsy.conclude(facts, attempt.spec, attempt.folder)
        if facts["log_tail"] is None:
            self._tell.line(f"{attempt.label}: its pod's log is gone from the cluster; in Cloud Logging it is")
            self._tell.line(f"  gcloud logging read '{facts['cloud_logging']}'")
        return self._finished(attempt, record)

    def _explain(
        self, attempts: Sequence[Attempt], jobs: dict[str, Json], blobs: Json, held: dict[str, status.Reason]
    ) -> list[Ended | None]:
        if time.monotonic() - self._explained_at_s < self._settings.status_interval:
            return []
        self._explained_at_s = time.monotonic()
        mine = {a.name: jobs[a.name] for a in attempts}
        running = [a for a in attempts if status.phase(mine[a.name]) is Phase.RUNNING]
        for attempt in running:
            self._progress(attempt, blobs.get(f"{attempt.remote}/{PROGRESS}"))
        if len(running) == len(attempts):
            self._tell.waiting(held)
            return []
        pods = self._cluster.pods(selector({a.spec.identity.study for a in attempts}))
        reasons = explain(mine, pods, self._cluster.events())
        self._tell.waiting({a.label: reasons[a.name] for a in attempts if a.name in reasons} | held)
        return [self._stuck(a, reasons.get(a.name), jobs[a.name]) for a in attempts]

    def _stuck(self, attempt: Attempt, reason: status.Reason | None, job: Json) -> Ended | None:
        if reason is None or not reason.stuck:
            attempt.stuck_at_s = None
            return None
        if attempt.stuck_at_s is None:
            attempt.stuck_at_s = time.monotonic()
        if time.monotonic() - attempt.stuck_at_s < self._settings.start_patience:
            return None
        facts = autopsy.gather(self._cluster, attempt.name, job)
        # Left alone, it would hold its node forever, and the next attempt could not have it.
        self._cluster.delete(attempt.name)
        return self._concluded(attempt, facts)

    def _progress(self, attempt: Attempt, blob: Any) -> None:
        if blob is None or blob.generation == attempt.progress:
            if not attempt.progress:
                self._tell.about(attempt.name, f"running: {attempt.label}")
            return
        attempt.progress = blob.generation
        try:
            at = json.loads(self._bucket.read(blob.name))
            step, of, phase, pod = int(at["step"]), int(at["of"]), str(at["phase"]), int(at.get("pod", 1))
        except (RemoteError, ValueError, KeyError, TypeError):  # only a progress line; the next one may do
            return
        again = f", pod {pod} of this run" if pod > 1 else ""
        where = f"step {step}/{of}" if 0 < step <= of else phase
        self._tell.about(attempt.name, f"running: {attempt.label} ({where}{again})")

    def _finished(self, attempt: Attempt, record: Record) -> Ended:
        measured = record.measured
        speed = f", {measured.tokens_per_s:.0f} tok/s" if measured and measured.tokens_per_s else ""
        why = f": {record.diagnosis.sentence}" if record.outcome != "ok" and record.diagnosis.sentence else ""
        self._tell.about(attempt.name, f"finished: {attempt.label}: {record.outcome}{speed}{why}")
        return Ended(attempt)

    def _failed(self, attempt: Attempt, why: str) -> Ended:
        self._tell.about(attempt.name, f"no result: {attempt.label}: {why}")
        return Ended(attempt, f"{attempt.name}: {why}")
