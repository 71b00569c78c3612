"""All attempts of one client against one cluster and one bucket: look at both, then act on the difference.

Level-triggered: each poll decides by what it finds, never by what this client remembers having done.
So the next client can take over wherever this one died.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

from harness.contract.errors import SpecError

from . import adopt, collect, status
from .ends import Ends
from .errors import Denied, Expired, Full, Refused, RemoteError, Unavailable
from .manifest import render_manifest, selector
from .settings import ExecutorSettings
from .status import Phase
from .submission import FRONTIER, PROGRESS, RECORD, Action, Submission, decide
from .telling import Reason, Teller, detached, explain

Json = dict[str, Any]
PARALLEL = 8
"""Requests under way at once while creating Jobs, and as many while fetching files."""
COLLECT_S = 2.0
"""How long a poll waits for results that are being fetched. It is short, so that Jobs are made without delay."""
PROGRESS_BYTES = 65536


class Fleet:
    """Submits, adopts, watches and collects."""

    def __init__(self, cluster: Any, bucket: Any, settings: ExecutorSettings, say: Callable[[str], object]) -> None:
        self._cluster, self._bucket, self._settings = cluster, bucket, settings
        self._tell = Teller(say)
        self._ends = Ends(cluster, bucket, settings, self._tell, self._troubled)
        self._submissions: dict[str, Submission] = {}
        self._lock = threading.Lock()
        self._halted = threading.Event()
        self._unanswered: set[str] = set()
        """Jobs whose creation is under way."""
        self._looked = False
        self._explained_at_s = float("-inf")
        self._hurt = False
        """Whether cluster or bucket failed to answer in this poll."""

    def submit(self, submissions: Sequence[Submission], *, must_succeed: bool = False) -> list[Submission]:
        """Take attempts over: collect, adopt or create each. Raises Refused; Unavailable only if `must_succeed`."""
        with self._lock:
            self._submissions.update({a.name: a for a in submissions})
            try:
                return self._reconcile(submissions, first=True, must_succeed=must_succeed)
            except Unavailable as error:
                if must_succeed:
                    raise
                self._troubled(error)
                return []

    def poll(self, names: Iterable[str]) -> list[Submission]:
        """Look once at the cluster and the bucket, and act; trouble with either ends no attempt."""
        with self._lock:
            self._hurt = False
            try:
                return self._reconcile([self._submissions[n] for n in names])
            except RemoteError as error:
                self._troubled(error)
                return []
            finally:
                if not self._hurt:
                    self._tell.well("cluster or bucket")

    def halt(self, patience_s: float) -> None:
        """Make no more Jobs; wait a little for the answers to requests that are under way."""
        self._halted.set()
        end_s = time.monotonic() + patience_s
        while self._unanswered and time.monotonic() < end_s:
            time.sleep(0.05)

    def left(self, names: Sequence[str]) -> str:
        """The message of a client that detaches: what goes on without it, and what the next client will do."""
        if not self._looked:
            return f"left before the first look at the cluster: of {len(names)} runs, Jobs that exist go on"
        mine = [self._submissions[n] for n in names]
        exist, recorded = sum(a.seen and not a.recorded for a in mine), sum(a.recorded for a in mine)
        return detached(len(mine), exist, recorded, len(self._unanswered))

    def cancel(self, names: Sequence[str], stop: threading.Event) -> list[str]:
        """Delete Jobs until `stop` is set; those that could not be deleted are named, those left are returned."""
        left = set(names)

        def delete(name: str) -> None:
            if stop.is_set():
                return
            try:
                self._cluster.delete(name)
                left.discard(name)
            except RemoteError as error:
                self._tell.line(f"{name} goes on: {error}")

        pool = ThreadPool(PARALLEL)  # daemon threads, not waited for: a request may hang
        result = pool.map_async(delete, names, 1)
        while not result.ready() and not stop.is_set():
            result.wait(0.1)
        return sorted(left)

    def calls(self) -> dict[str, int]:
        """Requests made so far, by what was asked."""
        return {**self._cluster.calls, **{f"bucket {k}": n for k, n in self._bucket.calls.items()}}

    def _troubled(self, error: RemoteError | OSError) -> None:
        self._hurt = True
        again = f"every Job is kept, asking again every {self._settings.poll_interval} s"
        self._tell.trouble("cluster or bucket", f"{error}; {again}")

    def _reconcile(
        self, submissions: Sequence[Submission], *, first: bool = False, must_succeed: bool = False
    ) -> list[Submission]:
        studies = {a.spec.identity.study for a in submissions}
        jobs = self._cluster.jobs(selector(studies))
        blobs: Json = {}
        for study in sorted(studies):
            blobs |= self._bucket.list(study, (RECORD, PROGRESS, FRONTIER))
        todo, ended = self._sorted(submissions, jobs, blobs)
        if first:
            made, kept, done = (len(todo[a]) for a in (Action.CREATE, Action.WAIT, Action.COLLECT))
            runs = f"{len(submissions)} runs"
            self._tell.line(f"{runs}: {made} Jobs to create, {kept} to adopt, {done} results to collect")
            self._say_later(submissions, jobs)
        todo[Action.CREATE] += self._replace(todo[Action.WAIT], jobs)
        full = threading.Event()
        # Daemon threads: a client that detaches does not wait for a request that hangs.
        with ThreadPool(PARALLEL) as pool:
            ended += pool.map(lambda a: self._create(a, full, must_succeed), todo[Action.CREATE], 1)
        self._ends.begin(todo, selector(studies), jobs, blobs)
        ended += self._ends.ended([s.name for s in submissions], None if must_succeed else COLLECT_S)
        held = {a.label: Reason(a.held) for a in todo[Action.CREATE] if a.held and not a.seen}
        try:
            ended += self._explain(todo[Action.WAIT], jobs, blobs, held)
        except RemoteError as error:  # a failed explanation must not lose the attempts that have ended
            self._troubled(error)
        return [e for e in ended if e is not None]

    def _sorted(
        self, submissions: Sequence[Submission], jobs: dict[str, Json], blobs: Json
    ) -> tuple[dict[Action, list[Submission]], list[Submission | None]]:
        """What each attempt needs; ends attempts whose name is taken by another Job."""
        todo: dict[Action, list[Submission]] = {action: [] for action in Action}
        ended: list[Submission | None] = []
        for submission in submissions:
            job = jobs.get(submission.name)
            submission.recorded = f"{submission.remote}/{submission.result}" in blobs
            if job is not None and not submission.recorded and (why := self._foreign(submission, job)):
                ended.append(self._ends.failed(submission, why))
                continue
            todo[decide(submission.seen, job, submission.recorded)].append(submission)
            if job is not None and job["metadata"]["uid"] != submission.replaced:
                submission.seen, submission.vanished_at_s = True, None
                submission.ran |= bool((job.get("status") or {}).get("ready"))
        self._looked = True
        return todo, ended

    def _foreign(self, submission: Submission, job: Json) -> str | None:
        """Why the Job of this name is not this run's; each Job is checked once."""
        if submission.checked == job["metadata"]["uid"]:
            return None
        why = adopt.foreign(job, submission.spec, submission.options)
        if why is None:
            submission.checked = job["metadata"]["uid"]
        return why

    def _say_later(self, submissions: Sequence[Submission], jobs: dict[str, Json]) -> None:
        for submission in submissions:
            if not submission.options and (number := adopt.elsewhere(jobs.values(), submission.spec)):
                self._tell.line(
                    f"attempt {number} of {submission.label} is in the cluster already, from another clone: once this "
                    f"one has the record of attempt {submission.spec.identity.attempt}, --config rerun=failed adopts it"
                )

    def _replace(self, waiting: Sequence[Submission], jobs: dict[str, Json]) -> list[Submission]:
        """Say which Jobs were made with other settings; delete those to be made anew, and return them."""
        groups: dict[str, list[Submission]] = {}
        for submission in waiting:
            job = jobs[submission.name]
            leaving = job["metadata"]["uid"] == submission.replaced or status.phase(job) is Phase.DELETING
            if not leaving and (different := adopt.differences(job, self._settings, submission.spec.platform.name)):
                groups.setdefault(adopt.told(different), []).append(submission)
        anew: list[Submission] = []
        if not groups:
            return anew
        pods: list[Json] = []
        if self._settings.replace_waiting and any(
            not adopt.started(jobs[a.name], ()) for group in groups.values() for a in group
        ):
            try:
                pods = self._cluster.pods(selector({a.spec.identity.study for a in waiting}))
            except Denied as error:  # without pods nobody knows which Jobs have started: keep all
                self._tell.about("replace", f"{error}; no Job is replaced, because pods show which have started")
                return anew
        for words, group in groups.items():
            idle = [a for a in group if not adopt.started(jobs[a.name], pods)]
            self._tell.differences(words, len(group), len(idle), idle[0].name if idle else "", self._settings)
            if self._settings.replace_waiting:
                anew += [a for a in idle if self._deleted(a, jobs[a.name])]
        return anew

    def _deleted(self, submission: Submission, job: Json) -> bool:
        try:
            if not self._cluster.delete(submission.name, unchanged=job):
                return False  # it has started meanwhile
        except RemoteError as error:
            self._troubled(error)
            return False
        submission.replaced, submission.seen, submission.checked = job["metadata"]["uid"], False, ""
        return True

    def _create(self, submission: Submission, full: threading.Event, must_succeed: bool) -> Submission | None:
        if self._halted.is_set() or (full.is_set() and submission.held):
            return None
        self._unanswered.add(submission.name)
        try:
            manifest = render_manifest(submission.spec, self._settings, submission.options)
            if (made := self._cluster.create(manifest)) is not None:
                submission.seen = True
                # A server drops a field whose feature gate is off, and says nothing.
                if dropped := ", ".join(f"spec.{key}" for key in sorted(manifest["spec"].keys() - made["spec"].keys())):
                    self._tell.about(
                        "dropped", f"the API server has dropped {dropped} of Jobs: its feature gates are off"
                    )
            elif job := self._cluster.job(submission.name):
                return self._met(submission, job)
        except Full as error:
            if must_succeed:
                raise
            full.set()
            submission.held = str(error)
        except (Unavailable, Expired, Denied) as error:
            if must_succeed:
                raise
            self._troubled(error)
        except (Refused, SpecError) as error:
            return self._ends.failed(submission, str(error))
        finally:
            self._unanswered.discard(submission.name)
        return None

    def _met(self, submission: Submission, job: Json) -> Submission | None:
        """The name was taken: by the Job just deleted, by another client's Job of this run, or by a foreign Job."""
        if job["metadata"]["uid"] == submission.replaced or status.phase(job) is Phase.DELETING:
            return None
        if why := self._foreign(submission, job):
            return self._ends.failed(submission, why)
        submission.seen = True
        self._tell.about(submission.name, f"adopted: {submission.label}: another client has just made its Job")
        return None

    def _explain(
        self, submissions: Sequence[Submission], jobs: dict[str, Json], blobs: Json, held: dict[str, Reason]
    ) -> list[Submission | None]:
        if time.monotonic() - self._explained_at_s < self._settings.status_interval:
            return []
        self._explained_at_s = time.monotonic()
        mine = {a.name: jobs[a.name] for a in submissions}
        running = [a for a in submissions if status.phase(mine[a.name]) is Phase.RUNNING]
        for submission in running:
            self._progress(submission, blobs.get(f"{submission.remote}/{PROGRESS}"))
        if len(running) == len(submissions):
            self._tell.waiting(held)
            return []
        pods = self._allowed("pods", lambda: self._cluster.pods(selector({s.spec.identity.study for s in submissions})))
        events = self._allowed("events", self._cluster.events)
        collect.keep_receipts({a.name: a.folder.parents[4] for a in submissions}, jobs, events or [])
        reasons = explain(mine, pods, events or ())
        self._tell.waiting({a.label: reasons[a.name] for a in submissions if a.name in reasons} | held)
        return [self._ends.stuck(a, reasons.get(a.name), jobs[a.name]) for a in submissions]

    def _allowed(self, what: str, ask: Callable[[], list[Json]]) -> list[Json] | None:
        """A LIST that only explains; None when this account may not make it: the client goes on without."""
        try:
            return ask()
        except Denied as error:
            self._tell.about(what, f"{error}; the client goes on, but its reasons for waiting lack {what}")
            return None

    def _progress(self, submission: Submission, blob: Any) -> None:
        if blob is None or blob.generation == submission.progress:
            if not submission.progress:
                self._tell.about(submission.name, f"running: {submission.label}")
            return
        submission.progress = blob.generation
        try:
            at = json.loads(self._bucket.read(blob.name, PROGRESS_BYTES))
            step, of, phase, pod = int(at["step"]), int(at["of"]), str(at["phase"]), int(at.get("pod", 1))
        except (RemoteError, ValueError, KeyError, TypeError, AttributeError):  # the next one may be whole
            return
        again = f", pod {pod} of this run" if pod > 1 else ""
        where = f"step {step}/{of}" if 0 < step <= of else phase[:40]
        self._tell.about(submission.name, f"running: {submission.label} ({where}{again})")
