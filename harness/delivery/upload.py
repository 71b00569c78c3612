"""Upload an attempt's folder to a bucket: the one file that imports google.cloud.storage.

Objects below the prefix given on the command line:

    pod-<n>.json             uploaded when the n-th pod of the Job starts
    progress.json            {"step", "of", "phase", "at_s", "pod"}, at most every 10 s; may be missing
    pods/<n>/<path>          every file of the record's list; no two pods write the same object
    record.json              last, and only if there is none yet: the attempt is finished, its files are those
                             of the pod that it names
    nodes/<n>/<pod>/<path>   logs of node n when node 0 was lost and nobody else has them
    pods/<n>/record.json     the record of a pod that was taken away: the Job's next pod starts clean, so the
                             attempt is not finished. Written at once without files, then again with them
"""

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from msgspec import structs
from requests import exceptions as http

from harness.contract.errors import DeliveryError, SpecError
from harness.contract.record import Record, parse_record
from harness.contract.spec import RunSpec
from harness.supervisor.folder import RECORD, text_of
from harness.supervisor.processes import Cancelled
from harness.supervisor.progress import Progress, say

T = TypeVar("T")
RESUMABLE_FROM_BYTES = 8 * 2**20
PARALLEL = 8
PROGRESS_EVERY_S = 10.0
REQUEST_TIMEOUT_S = 60.0
PODS_AT_MOST = 1000
BESIDE_PATIENCE_S = 20.0
CREDENTIALS_VARIABLE, CREDENTIALS_PATIENCE_S = "HARNESS_CREDENTIALS_PATIENCE_S", 300.0
"""On a fresh node the metadata server may refuse for a while, and IAM answers 403 while a grant spreads."""
ASK_AGAIN_S = 5.0
WITHOUT_FILES = "The pod was taken away before the files beside this record were uploaded."
FAULTS = (api.GoogleAPIError, auth.GoogleAuthError, http.RequestException, OSError)
"""Exceptions of the client library after its own retries."""
HOPELESS = (api.NotFound, api.Forbidden, api.Unauthorized, api.BadRequest, auth.GoogleAuthError)
"""Errors that the same request would get again."""


class Bucket:
    """One attempt's place in a bucket. Every call raises DeliveryError when the bucket stays out of reach."""

    def __init__(self, url: str, interrupted: Callable[[], bool] = lambda: False) -> None:
        scheme, _, rest = url.partition("://")
        name, _, prefix = rest.partition("/")
        if scheme != "gs" or not name:
            raise SpecError(f"--upload: found {url!r}, expected gs://BUCKET/PREFIX")
        self.url = url.rstrip("/")
        self._name, self._prefix = name, prefix.strip("/")
        self._interrupted = interrupted
        self._lock = threading.Lock()
        self._bucket: Any = None
        self._pod: int | None = None
        """This pod's number, once it is known."""
        self._delivering = False

    def _opened(self) -> Any:
        with self._lock:
            if self._bucket is None:
                if os.environ.get("STORAGE_EMULATOR_HOST"):
                    client = storage.Client(project="emulator", credentials=AnonymousCredentials())
                else:
                    client = storage.Client(project=None)  # objects need no project
                self._bucket = client.bucket(self._name)
            return self._bucket

    def _patiently(self, work: Callable[[], T]) -> T:
        """Call `work`, and repeat it while the bucket refuses access that may still be granted."""
        end_s: float | None = None
        while True:
            try:
                return work()
            except FAULTS as error:
                if not _late(error):
                    raise
                now_s = time.monotonic()
                if end_s is None:
                    patience_s = float(os.environ.get(CREDENTIALS_VARIABLE) or CREDENTIALS_PATIENCE_S)
                    end_s = now_s + patience_s
                    say(f"{self.url}: {_words(error)}; asking again for {patience_s:.0f} s")
                if now_s >= end_s:
                    raise
                pause_end_s = min(now_s + ASK_AGAIN_S, end_s)
                while time.monotonic() < pause_end_s:
                    if self._interrupted():
                        if self._delivering:  # the log holds the record already: report the refusal
                            raise
                        raise Cancelled("a signal came while the bucket gave no access") from None
                    time.sleep(0.1)

    def _bucket_is_there(self, patience_s: float) -> bool:
        try:
            return bool(self._opened().exists(**_options(patience_s)))
        except FAULTS:
            # An account that may write objects is often not allowed to read the bucket's own settings.
            return True

    def delivered(self, spec: RunSpec, patience_s: float) -> Record | None:
        """The record that is there already, or None. Raises DeliveryError when it belongs to another spec."""
        try:
            raw = self._patiently(lambda: self._blob(RECORD).download_as_bytes(**_options(patience_s)))
            record = parse_record(json.loads(raw))
        except api.NotFound as error:
            if not self._bucket_is_there(patience_s):
                raise DeliveryError(f"{self.url}: {_words(error)}") from None
            return None
        except FAULTS as error:
            raise DeliveryError(f"{self.url}/{RECORD}: cannot be read: {_words(error)}") from error
        except (ValueError, SpecError) as error:
            raise DeliveryError(f"{self.url}/{RECORD}: not a record: {error}; move it away") from None
        found, expected = {record.spec_hash[:12], record.spec.hash()[:12]}, spec.hash()[:12]
        if found != {expected}:
            raise DeliveryError(
                f"{self.url}/{RECORD}: found the record of spec {' and '.join(sorted(found))}, "
                f"expected none or of {expected}"
            )
        return record

    def announce(self, patience_s: float) -> int:
        """Note in the bucket that a pod starts; return this pod's ordinal within its Job."""
        stated = os.environ.get("HARNESS_POD", "")
        text = json.dumps({"started_at_s": time.time(), "pod": os.environ.get("HARNESS_POD_NAME")})
        first = int(stated) if stated.isdigit() else 1
        for number in range(first, PODS_AT_MOST):
            try:
                self._patiently(lambda: self._put(f"pod-{number}.json", text, patience_s, if_generation_match=0))  # noqa: B023
            except api.PreconditionFailed:
                if not stated.isdigit():
                    continue
            except FAULTS as error:
                raise DeliveryError(f"{self.url}: cannot be written: {_words(error)}") from error
            self._pod = number
            return number
        raise DeliveryError(f"{self.url}: {PODS_AT_MOST} pods have started here; the Job is not getting anywhere")

    def deliver(self, out: Path, record: Record, patience_s: float) -> None:
        """Upload the files below this pod's own folder, then the record; a record already there stays."""
        self._delivering = True
        taken = record.outcome == "preemption"
        end_s = time.monotonic() + patience_s
        if not taken and self.delivered(record.spec, patience_s):
            say(f"{self.url}/{RECORD} is there already, from another pod of this run; left as it is")
            return
        if self._pod is None:
            record = structs.replace(record, pod=self.announce(patience_s))
        below = f"pods/{record.pod}/"
        try:
            if taken:
                # The node may be gone in seconds: the smallest, most important object first.
                bare = structs.replace(record, files=(), notes=(*record.notes, WITHOUT_FILES))
                self._put(below + RECORD, text_of(bare), _left_s(end_s))
            self._patiently(lambda: self._files(out, record, below, end_s))
            if taken:
                self._put(below + RECORD, text_of(record), _left_s(end_s))
            else:
                self._put(RECORD, text_of(record), _left_s(end_s), if_generation_match=0)
        except api.PreconditionFailed:
            self.delivered(record.spec, _left_s(end_s))
            say(f"{self.url}/{RECORD} came from another pod of this run meanwhile; left as it is")
        except FAULTS as error:
            raise DeliveryError(
                f"{self.url}: not uploaded: {_words(error)}; the record is on the line above"
            ) from error

    def _files(self, out: Path, record: Record, below: str, end_s: float) -> None:
        """Upload a record's files, the smallest first."""
        files = sorted(record.files, key=lambda f: f.size_bytes)
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(lambda f: self._file(out / f.path, below + f.path, end_s), files))

    def leave_logs(self, folder: Path, below: str, patience_s: float) -> None:
        """Upload what a node has written when nobody else will, the smallest first; what does not arrive is lost."""
        end_s = time.monotonic() + patience_s
        paths = sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        try:
            for path in paths:
                self._file(path, f"{below}/{path.relative_to(folder).as_posix()}", end_s)
        except FAULTS as error:
            say(f"{self.url}: logs of this node not uploaded: {_words(error)}")

    def put_result(self, name: str, text: str, patience_s: float) -> None:
        """Upload a result that is one object; an earlier one stays."""
        self._delivering = True
        try:
            self._patiently(lambda: self._put(name, text, patience_s, if_generation_match=0))
        except api.PreconditionFailed:
            say(f"{self.url}/{name} is there already, from another pod; left as it is")
        except FAULTS as error:
            raise DeliveryError(f"{self.url}: not uploaded: {_words(error)}") from error

    def put_progress(self, text: str) -> None:
        """Overwrite progress.json, once, without a retry."""
        try:
            self._blob("progress.json").upload_from_string(text, "application/json", timeout=5, retry=None)
        except FAULTS:
            return

    def read_beside(self, spec: RunSpec, name: str) -> bytes | None:
        """An object of the attempt's study, by its name below the study's prefix; None when there is none."""
        try:
            blob = self._beside(spec, name)
            return blob.download_as_bytes(**_options(BESIDE_PATIENCE_S)) if blob else None
        except api.NotFound:
            return None
        except FAULTS as error:
            raise DeliveryError(f"{self.url}: {name} cannot be read: {_words(error)}") from error

    def put_beside(self, spec: RunSpec, name: str, text: str) -> None:
        """Write an object of the attempt's study."""
        try:
            if blob := self._beside(spec, name):
                blob.upload_from_string(text, "application/json", **_options(BESIDE_PATIENCE_S))
        except FAULTS as error:
            raise DeliveryError(f"{self.url}: {name} cannot be written: {_words(error)}") from error

    def _beside(self, spec: RunSpec, name: str) -> Any:
        """None when the prefix is not that of an attempt in a study."""
        study = self._prefix.removesuffix(spec.path())
        return None if study == self._prefix else self._opened().blob(f"{study}{name}")

    def _file(self, path: Path, name: str, end_s: float) -> None:
        blob = self._blob(name)
        if path.stat().st_size > RESUMABLE_FROM_BYTES:
            blob.chunk_size = RESUMABLE_FROM_BYTES
        blob.upload_from_filename(str(path), **_options(_left_s(end_s)))

    def _put(self, name: str, text: str, left_s: float, if_generation_match: int | None = None) -> None:
        blob = self._blob(name)
        blob.upload_from_string(text, "application/json", if_generation_match=if_generation_match, **_options(left_s))

    def _blob(self, name: str) -> Any:
        return self._opened().blob(f"{self._prefix}/{name}" if self._prefix else name)


class ProgressUploader:
    """Keeps progress.json roughly current from a thread of its own; the run never waits for it."""

    def __init__(self, bucket: Bucket, spec: RunSpec, pod: int) -> None:
        self._bucket, self._total, self._pod = bucket, spec.total_steps, pod
        self._latest: dict[str, Any] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="progress", daemon=True)

    def start(self) -> None:
        """Begin uploading."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further upload; a request that is under way may still finish."""
        self._stop.set()

    def take(self, progress: Progress) -> None:
        """Note where the slowest rank is."""
        if progress.last:
            beat = min(progress.last.values(), key=lambda b: b.step)
            self._latest = {"step": beat.step + 1, "of": self._total, "phase": beat.phase, "at_s": beat.at_s}

    def _loop(self) -> None:
        sent: dict[str, Any] = {}
        while not self._stop.wait(PROGRESS_EVERY_S):
            latest = self._latest
            if latest != sent:
                self._bucket.put_progress(json.dumps(latest | {"pod": self._pod}))
                sent = latest


def _late(error: BaseException) -> bool:
    """Whether a refusal may be temporary: a grant still spreads, or the metadata server still starts."""
    cause = error.cause if isinstance(error, api.RetryError) else error
    return isinstance(cause, (api.Forbidden, api.Unauthorized, auth.GoogleAuthError))


def hopeless(error: DeliveryError) -> bool:
    """Whether a later try would fail in the same way: no bucket, no permission, no credentials."""
    return error.__cause__ is None or isinstance(error.__cause__, HOPELESS)


def _options(left_s: float) -> dict[str, Any]:
    """How long one request may take and how it is repeated, so that all end within `left_s`."""
    retry = DEFAULT_RETRY.with_timeout(left_s).with_delay(initial=0.5, multiplier=2.0, maximum=10.0)
    return {"timeout": max(2.0, min(REQUEST_TIMEOUT_S, left_s / 2)), "retry": retry}


def _left_s(end_s: float) -> float:
    return max(1.0, end_s - time.monotonic())


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
