"""How an attempt ends: with a collected record, with one made of what Kubernetes knows, or with an error."""

import time
from collections.abc import Callable
from multiprocessing.pool import AsyncResult, ThreadPool
from typing import Any

from harness.contract.errors import SpecError
from harness.contract.files import write_atomically
from harness.contract.record import Record

from . import autopsy, collect, status
from .attempt import FRONTIER, RECORD, Action, Attempt, Ended, last_pod_record, later_attempts
from .errors import Denied, Expired, Refused, RemoteError, Unavailable
from .manifest import render_manifest
from .settings import ExecutorSettings
from .telling import Teller, inert

Json = dict[str, Any]
Act = Callable[[Attempt], Ended | None]
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
        self._under_way: dict[str, AsyncResult[Ended | None]] = {}

    def begin(self, todo: dict[Action, list[Attempt]], selector: str, jobs: dict[str, Json], blobs: Json) -> None:
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
            for attempt in todo[action]:
                if self._pool is None:
                    self._pool = ThreadPool(PARALLEL)  # daemon threads: a client that leaves does not wait for them
                if attempt.name not in self._under_way:
                    self._under_way[attempt.name] = self._pool.apply_async(self._safely, (act, attempt))

    def ended(self, patience_s: float | None) -> list[Ended | None]:
        """Attempts that have ended since the last look; waits for those under way, but not for long."""
        end_s = None if patience_s is None else time.monotonic() + patience_s
        for result in self._under_way.values():
            result.wait(None if end_s is None else max(0.0, end_s - time.monotonic()))
        done = [name for name, result in self._under_way.items() if result.ready()]
        return [self._under_way.pop(name).get() for name in done]

    def _safely(self, act: Act, attempt: Attempt) -> Ended | None:
        """Do an act about one attempt; its failure does not block the others."""
        try:
            ended = act(attempt)
            attempt.denied_at_s = None
            return ended
        except (Unavailable, Expired, OSError) as error:  # OSError: the disk of this machine
            self._troubled(error)
        except Denied as error:
            attempt.denied_at_s = attempt.denied_at_s or time.monotonic()
            if time.monotonic() - attempt.denied_at_s >= self._settings.credentials_patience:
                return self.failed(attempt, str(error))
            self._troubled(error)
        except Exception as error:
            attempt.damaged += 1
            known = isinstance(error, RemoteError)
            words = str(error) if known else f"{type(error).__name__}: {error}"
            if attempt.damaged >= DAMAGED_POLLS:
                return self.failed(attempt, words)
        return None

    def _collect(self, attempt: Attempt, record_name: str, jobs: dict[str, Json], blobs: Json) -> Ended | None:
        """Bring a delivered attempt into results/, after later attempts of its run that other clones have made."""
        for later in later_attempts(attempt, blobs):
            if not (later.folder / RECORD).exists():
                if self._bring(later, RECORD, jobs.get(later.name)) is None:
                    return None
                self._tell.about(later.name, f"collected: {later.label}: a rerun that another clone has made")
        record = self._bring(attempt, record_name, jobs.get(attempt.name))
        return None if record is None else self._finished(attempt, record)

    def _bring(self, attempt: Attempt, record_name: str, job: Json | None) -> Record | None:
        def ready(record: Record) -> bool:
            """Facts are written before the record: if this client dies in between, the next one writes both."""
            if record.outcome == "ok" or job is None:
                return True
            facts = self._morgue.facts(attempt.name, job, with_log=False)
            if facts is not None:
                collect.write_json(attempt.folder / "k8s.json", facts)
            return facts is not None

        return collect.collect(self._bucket, attempt.remote, record_name, attempt.folder, attempt.spec, ready)

    def _found(self, attempt: Attempt) -> Ended:
        """Bring the result of a search into results/; its probes' folders stay in the bucket."""
        name = f"{attempt.remote}/{FRONTIER}"
        raw = self._bucket.read(name, collect.RECORD_BYTES)
        found = collect.check_frontier(raw, attempt.spec, name)
        write_atomically(attempt.folder / FRONTIER, raw)
        size = "none" if found.largest_fit is None else found.largest_fit
        self._tell.about(attempt.name, f"finished: {attempt.label}: largest {size} ({found.ended})")
        return Ended(attempt)

    def _vanished(self, attempt: Attempt, jobs: dict[str, Json], blobs: Json) -> Ended | None:
        """End an attempt whose Job is gone, once its pod can deliver nothing more."""
        if attempt.vanished_at_s is None:
            attempt.vanished_at_s = time.monotonic()
        if last := last_pod_record(attempt, blobs):
            return self._collect(attempt, last, jobs, {})
        patience_s = self._settings.grace_period + VANISHED_S if attempt.ran else NEVER_RAN_S
        if time.monotonic() - attempt.vanished_at_s < patience_s:
            return None
        why = "its Job was deleted and left no record; the same command creates it anew"
        try:
            # A deleted namespace lists as empty; only a request to create something reveals it.
            self._cluster.create(render_manifest(attempt.spec, self._settings, attempt.options), dry_run=True)
        except Unavailable:
            pass
        except (Refused, SpecError) as error:
            why = f"its Job is gone, and another one cannot be made: {error}"
        return self.failed(attempt, why)

    def _over(self, attempt: Attempt, jobs: dict[str, Json], blobs: Json) -> Ended | None:
        """End an attempt whose Job is over although no record was delivered."""
        if last := last_pod_record(attempt, blobs):
            return self._collect(attempt, last, jobs, {})
        facts = self._morgue.facts(attempt.name, jobs[attempt.name])
        return None if facts is None else self._concluded(attempt, facts)

    def stuck(self, attempt: Attempt, reason: status.Reason | None, job: Json) -> Ended | None:
        """End an attempt whose container has failed to start for longer than `start_patience`."""
        if reason is None or not reason.stuck:
            attempt.stuck_at_s = None
            return None
        if attempt.stuck_at_s is None:
            attempt.stuck_at_s = time.monotonic()
        if time.monotonic() - attempt.stuck_at_s < self._settings.start_patience:
            return None
        facts = self._morgue.facts(attempt.name, job)
        if facts is None:
            return None
        # The pod would hold its node forever, and the next attempt would get none.
        self._cluster.delete(attempt.name)
        return self._concluded(attempt, facts)

    def _concluded(self, attempt: Attempt, facts: Json) -> Ended:
        autopsy.fill_log(facts)
        if attempt.options:
            collect.write_json(attempt.folder / "k8s.json", facts)
            found = autopsy.diagnose(facts)
            return self.failed(attempt, f"{found.outcome}: {found.sentence}; see k8s.json in its folder")
        record = autopsy.conclude(facts, attempt.spec, attempt.folder)
        if facts["log_tail"] is None:
            self._tell.line(f"{attempt.label}: its pod's log is gone from the cluster; in Cloud Logging it is")
            self._tell.line(f"  gcloud logging read '{facts['cloud_logging']}'")
        return self._finished(attempt, record)

    def _finished(self, attempt: Attempt, record: Record) -> Ended:
        """Print how an attempt with a record ended."""
        measured = record.measured
        speed = f", {measured.tokens_per_s:.0f} tok/s" if measured and measured.tokens_per_s else ""
        why = f": {record.diagnosis.sentence}" if record.outcome != "ok" and record.diagnosis.sentence else ""
        self._tell.about(attempt.name, f"finished: {attempt.label}: {record.outcome}{speed}{why}")
        return Ended(attempt)

    def failed(self, attempt: Attempt, why: str) -> Ended:
        """Say why an attempt ends without a record."""
        self._tell.about(attempt.name, f"no result: {attempt.label}: {why}")
        return Ended(attempt, inert(f"{attempt.name}: {why}"))
