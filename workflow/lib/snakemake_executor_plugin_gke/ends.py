"""How an attempt ends: with a collected record, with one made of what Kubernetes knows, or with an error."""

import time
from collections.abc import Callable, Iterable
from multiprocessing.pool import AsyncResult, ThreadPool
from typing import Any

from harness.contract.errors import SpecError
from harness.contract.files import write_atomically
from harness.contract.record import Record

from . import autopsy, collect
from .errors import Denied, Expired, Refused, RemoteError, Unavailable
from .manifest import render_manifest
from .settings import ExecutorSettings
from .submission import FRONTIER, RECORD, Action, Submission, last_pod_record, later_attempts
from .telling import Reason, Teller, inert

Json = dict[str, Any]
Act = Callable[[Submission], Submission | None]
"""Ends an attempt; None: the next poll looks at it again."""
PARALLEL = 8
"""Attempts whose files are fetched at once."""
VANISHED_S, NEVER_RAN_S = 60.0, 5.0
"""Time after its grace period for the pod of a deleted Job to deliver a last record; the same if no pod ran."""
DAMAGED_POLLS = 3
"""Polls after which an attempt is given up whose record contradicts its files."""


class Ends:
    """Ends attempts in its own threads, so that downloads do not delay the creation of Jobs."""

    def __init__(
        self, cluster: Any, bucket: Any, settings: ExecutorSettings, tell: Teller,
        troubled: Callable[[RemoteError | OSError], None],
    ) -> None:  # fmt: skip
        self._cluster, self._bucket, self._settings, self._tell = cluster, bucket, settings, tell
        self._troubled = troubled
        self._morgue = autopsy.Morgue(cluster, lambda text: tell.about("autopsy", text))
        self._pool: ThreadPool | None = None
        self._under_way: dict[str, AsyncResult[Submission | None]] = {}

    def begin(self, todo: dict[Action, list[Submission]], selector: str, jobs: dict[str, Json], blobs: Json) -> None:
        """Begin to end the attempts that are over, in the background."""
        try:
            self._morgue.new_poll(selector)
        except RemoteError as error:
            self._troubled(error)
        acts: dict[Action, Act] = {
            Action.COLLECT: lambda a: self._found(a) if a.options else self._collect(a, RECORD, jobs, blobs),
            Action.VANISHED: lambda a: self._vanished(a, jobs, blobs),
            Action.AUTOPSY: lambda a: self._over(a, jobs, blobs),
        }
        for action, act in acts.items():
            for submission in todo[action]:
                if self._pool is None:
                    self._pool = ThreadPool(PARALLEL)  # daemon threads: a client that leaves does not wait for them
                if submission.name not in self._under_way:
                    self._under_way[submission.name] = self._pool.apply_async(self._safely, (act, submission))

    def ended(self, names: Iterable[str], patience_s: float | None) -> list[Submission | None]:
        """Those of `names` that have ended since the last look; waits for those under way, but not for long.

        Others stay until they are asked for: Snakemake submits one batch while the poll thread follows another.
        """
        end_s = None if patience_s is None else time.monotonic() + patience_s
        mine = {name: self._under_way[name] for name in names if name in self._under_way}
        for result in mine.values():
            result.wait(None if end_s is None else max(0.0, end_s - time.monotonic()))
        done = [name for name, result in mine.items() if result.ready()]
        return [self._under_way.pop(name).get() for name in done]

    def _safely(self, act: Act, submission: Submission) -> Submission | None:
        """Do an act about one attempt; its failure does not block the others."""
        try:
            ended = act(submission)
            submission.denied_at_s = None
            return ended
        except (Unavailable, Expired, OSError) as error:  # OSError: the disk of this machine
            self._troubled(error)
        except Denied as error:
            submission.denied_at_s = submission.denied_at_s or time.monotonic()
            if time.monotonic() - submission.denied_at_s >= self._settings.credentials_patience:
                return self.failed(submission, str(error))
            self._troubled(error)
        except Exception as error:
            submission.damaged += 1
            known = isinstance(error, RemoteError)
            words = str(error) if known else f"{type(error).__name__}: {error}"
            if submission.damaged >= DAMAGED_POLLS:
                return self.failed(submission, words)
        return None

    def _collect(
        self, submission: Submission, record_name: str, jobs: dict[str, Json], blobs: Json
    ) -> Submission | None:
        """Bring a delivered attempt into results/, after later attempts of its run that other clones have made."""
        for later in later_attempts(submission, blobs):
            if not (later.folder / RECORD).exists():
                if self._bring(later, RECORD, jobs.get(later.name)) is None:
                    return None
                self._tell.about(later.name, f"collected: {later.label}: a rerun that another clone has made")
        record = self._bring(submission, record_name, jobs.get(submission.name))
        return None if record is None else self._finished(submission, record)

    def _bring(self, submission: Submission, record_name: str, job: Json | None) -> Record | None:
        def settle(record: Record) -> Record | None:
            """Facts are written before the record: if this client dies in between, the next one writes both."""
            if job is None:
                return record
            # The times of every run are kept, since they say what it cost; events only explain failures.
            facts = self._morgue.facts(submission.name, job, with_log=False, with_events=record.outcome != "ok")
            if facts is None:
                return None
            collect.write_json(submission.folder / "k8s.json", facts)
            return autopsy.corrected(record, facts)

        return collect.collect(self._bucket, submission.remote, record_name, submission.folder, submission.spec, settle)

    def _found(self, submission: Submission) -> Submission:
        """Bring the result of a search into results/; its probes' folders stay in the bucket."""
        name = f"{submission.remote}/{FRONTIER}"
        raw = self._bucket.read(name, collect.RECORD_BYTES)
        found = collect.check_frontier(raw, submission.spec, name)
        write_atomically(submission.folder / FRONTIER, raw)
        size = "none" if found.largest_fit is None else found.largest_fit
        self._tell.about(submission.name, f"finished: {submission.label}: largest {size} ({found.ended})")
        return submission

    def _vanished(self, submission: Submission, jobs: dict[str, Json], blobs: Json) -> Submission | None:
        """End an attempt whose Job is gone, once its pod can deliver nothing more."""
        if submission.vanished_at_s is None:
            submission.vanished_at_s = time.monotonic()
        if last := last_pod_record(submission, blobs):
            return self._collect(submission, last, jobs, {})
        patience_s = self._settings.grace_period + VANISHED_S if submission.ran else NEVER_RAN_S
        if time.monotonic() - submission.vanished_at_s < patience_s:
            return None
        why = "its Job was deleted and left no record; the same command creates it anew"
        try:
            # A deleted namespace lists as empty; only a request to create something reveals it.
            self._cluster.create(render_manifest(submission.spec, self._settings, submission.options), dry_run=True)
        except Unavailable:
            pass
        except (Refused, SpecError) as error:
            why = f"its Job is gone, and another one cannot be made: {error}"
        return self.failed(submission, why)

    def _over(self, submission: Submission, jobs: dict[str, Json], blobs: Json) -> Submission | None:
        """End an attempt whose Job is over although no record was delivered."""
        if last := last_pod_record(submission, blobs):
            return self._collect(submission, last, jobs, {})
        facts = self._morgue.facts(submission.name, jobs[submission.name])
        if facts is None:
            return None
        self._fetch_node_logs(submission)
        return self._concluded(submission, facts)

    def stuck(self, submission: Submission, reason: Reason | None, job: Json) -> Submission | None:
        """End an attempt whose container has failed to start for longer than `start_patience`."""
        return self._safely(lambda s: self._stuck(s, reason, job), submission)

    def _stuck(self, submission: Submission, reason: Reason | None, job: Json) -> Submission | None:
        if reason is None or not reason.stuck:
            submission.stuck_at_s = None
            return None
        if submission.stuck_at_s is None:
            submission.stuck_at_s = time.monotonic()
        if time.monotonic() - submission.stuck_at_s < self._settings.start_patience:
            return None
        facts = self._morgue.facts(submission.name, job)
        if facts is None:
            return None
        self._fetch_node_logs(submission)
        # The pod would hold its node forever, and the next attempt would get none.
        try:
            self._cluster.delete(submission.name)
        except Refused as error:
            self._tell.line(f"{submission.name} keeps running and holds its node; delete it: {error}")
        return self._concluded(submission, facts)

    def _fetch_node_logs(self, submission: Submission) -> None:
        collect.fetch_node_logs(self._bucket, submission.remote, submission.folder, submission.spec)

    def _concluded(self, submission: Submission, facts: Json) -> Submission:
        autopsy.fill_log(facts)
        if submission.options:
            collect.write_json(submission.folder / "k8s.json", facts)
            found = autopsy.diagnose(facts)
            return self.failed(submission, f"{found.outcome}: {found.sentence}; see k8s.json in its folder")
        record = autopsy.conclude(facts, submission.spec, submission.folder)
        if facts["log_tail"] is None:
            self._tell.line(f"{submission.label}: the cluster gave no log of its pod; Cloud Logging has it:")
            self._tell.line(f"  gcloud logging read '{facts['cloud_logging']}'")
        return self._finished(submission, record)

    def _finished(self, submission: Submission, record: Record) -> Submission:
        """Print how an attempt with a record ended."""
        measured = record.measured
        speed = f", {measured.tokens_per_s:.0f} tok/s" if measured and measured.tokens_per_s else ""
        why = f": {record.diagnosis.sentence}" if record.outcome != "ok" and record.diagnosis.sentence else ""
        self._tell.about(submission.name, f"finished: {submission.label}: {record.outcome}{speed}{why}")
        return submission

    def failed(self, submission: Submission, why: str) -> Submission:
        """Say why an attempt ends without a record."""
        self._tell.about(submission.name, f"no result: {submission.label}: {why}")
        submission.error = inert(f"{submission.name}: {why}")
        return submission
