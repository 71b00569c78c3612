"""The one file of the executor that talks to the bucket: list what is there, fetch what is finished."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY

from .errors import Damaged, Denied, Expired, Missing, Refused, Unavailable

TIMEOUT_S = (5.0, 15.0)
RETRY: Retry = DEFAULT_RETRY.with_timeout(20.0)


@dataclass(frozen=True, slots=True)
class Blob:
    """One object: its generation changes whenever its content does."""

    name: str
    generation: int


class Bucket:
    """The objects below gs://bucket/prefix; names are relative to the prefix."""

    def __init__(self, url: str) -> None:
        name, _, prefix = url.removeprefix("gs://").partition("/")
        self.url = url.rstrip("/")
        self.calls: dict[str, int] = {}
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        self._name = name
        self.connect()

    def connect(self) -> None:
        """Read the credentials of this machine, at the start and after they were found to be expired."""
        try:
            # Reading objects needs no project, and a machine may have no default one.
            client = storage.Client(project=None)
        except (auth.GoogleAuthError, OSError, ValueError) as error:
            raise Expired(
                f"bucket {self.url}: no credentials: {error} (run gcloud auth application-default login)"
            ) from None
        self._client = client
        self._bucket = client.bucket(self._name)

    def list(self, study: str, names: tuple[str, ...]) -> dict[str, Blob]:
        """Objects below a study whose last part is one of `names`, in one LIST a page of 1000 objects."""
        blobs: dict[str, Blob] = {}
        with _sorted_errors(self, "list objects"):
            pages = self._client.list_blobs(
                self._bucket, prefix=f"{self._prefix}{study}/",
                fields="items(name,generation),nextPageToken", timeout=TIMEOUT_S, retry=RETRY,
                # The server filters the names. A server that ignores the glob sends all: hence the second filter below.
                match_glob=f"**/{{{','.join(names)}}}",
            )  # fmt: skip
            for blob in pages:
                if blob.name.rpartition("/")[2] in names:
                    relative = blob.name.removeprefix(self._prefix)
                    blobs[relative] = Blob(relative, int(blob.generation or 0))
        return blobs

    def sizes(self, folder: str) -> dict[str, int]:
        """Objects below a folder, by their names in it, with their sizes in bytes. Raises Unavailable, Refused."""
        start = f"{self._prefix}{folder}/"
        with _sorted_errors(self, f"look into {folder}"):
            found = self._client.list_blobs(
                self._bucket, prefix=start, fields="items(name,size),nextPageToken", timeout=TIMEOUT_S, retry=RETRY
            )
            return {blob.name.removeprefix(start): int(blob.size or 0) for blob in found}

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The content of an object. Raises Unavailable, Refused; Damaged when it is larger than `limit_bytes`."""
        with _sorted_errors(self, f"read {name}"):
            # Asks for one byte more than allowed: an object that is too large is never held in memory.
            try:
                content: bytes = self._blob(name).download_as_bytes(end=limit_bytes, timeout=TIMEOUT_S, retry=RETRY)
            except api.RequestRangeNotSatisfiable:  # an empty object has no first byte
                content = b""
        if len(content) > limit_bytes:
            raise Damaged(f"{name}: larger than the {limit_bytes} bytes that such a file may have")
        return content

    def fetch(self, name: str, path: Path, size_bytes: int) -> None:
        """Download an object of a known size to `path`, no more than one byte above it. Raises Unavailable, Refused."""
        with _sorted_errors(self, f"read {name}"):
            try:
                self._blob(name).download_to_filename(str(path), end=size_bytes, timeout=TIMEOUT_S, retry=RETRY)
            except api.RequestRangeNotSatisfiable:
                path.touch()

    def _blob(self, name: str) -> Any:
        return self._bucket.blob(f"{self._prefix}{name}")


class _sorted_errors:
    """Turns the client library's many exceptions into those of errors.py."""

    def __init__(self, bucket: Bucket, what: str) -> None:
        self._bucket, self._what = bucket, what

    def __enter__(self) -> None:
        what = self._what.split()[0]
        self._bucket.calls[what] = self._bucket.calls.get(what, 0) + 1

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        text = f"bucket {self._bucket.url}: {self._what}: {_words(error)}"
        match error:
            case auth.RefreshError() | api.Unauthorized():
                # The next request uses what somebody may have logged in with since.
                self._bucket.connect()
                raise Expired(f"{text}: credentials expired: run gcloud auth application-default login") from None
            case api.Forbidden():
                raise Denied(
                    f"{text}: permission denied: the account needs roles/storage.objectViewer on the bucket"
                ) from None
            case api.NotFound() if self._what.startswith("read"):
                raise Missing(f"{text}: the object was listed or is in a record, but is gone now") from None
            case api.NotFound():
                raise Refused(f"{text}: not found: check --gke-bucket") from None
            case (
                api.RetryError() | api.TooManyRequests() | api.ServerError() | auth.TransportError() | DataCorruption()
            ):
                raise Unavailable(text) from None
            case api.GoogleAPICallError():
                raise Refused(text) from None
            case requests.RequestException() | OSError():
                raise Unavailable(text) from None


def _words(error: BaseException) -> str:
    """What the bucket said, without the request's long address."""
    cause = error.cause if isinstance(error, api.RetryError) else error
    if isinstance(cause, api.GoogleAPICallError) and cause.code is not None:
        said = re.sub(r"^[A-Z]+ \S+: ", "", str(cause.message))
        return f"{int(cause.code)} {said}"[:300]
    return f"{type(cause).__name__}: {cause}"[:300]
