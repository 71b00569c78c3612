"""The bucket of a setup: made once, versioned, and written to by the pods' account alone."""

from collections.abc import Callable
from typing import Any

from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import storage

from harness.contract.errors import HarnessError

LABELS = {"managed-by": "dtbench"}
ROLE = "roles/storage.objectUser"
KEPT_DAYS = 30
"""Days for which an overwritten or deleted object can be brought back. Running pods overwrite their progress often."""
SOME = 2
TIMEOUT_S = 30.0


class Bucket:
    """One bucket by its address `gs://NAME/PREFIX`. Every method raises HarnessError in Google's words."""

    def __init__(self, url: str, project: str = "") -> None:
        self.name = url.removeprefix("gs://").partition("/")[0]
        try:
            self._client = storage.Client(project=project or None)
        except (auth.GoogleAuthError, OSError) as error:
            raise HarnessError(
                f"bucket {self.name}: no login: {error} (run gcloud auth application-default login, or give --project)"
            ) from None

    def make(self, location: str, member: Callable[[int, str], str] | None, *, dry_run: bool) -> list[str]:
        """Bring the bucket to what is wanted; returns what happened in words.

        `member` turns project number and project into the name of the pods' account for IAM.
        """
        return _told(self.name, lambda: self._make(location, member, dry_run))

    def _make(self, location: str, member: Callable[[int, str], str] | None, dry_run: bool) -> list[str]:
        bucket = self._client.lookup_bucket(self.name, timeout=TIMEOUT_S)
        if bucket is None and dry_run:
            return [f"would be made in {location} with versioning", *([f"{ROLE} would be granted"] if member else [])]
        if bucket is None:
            bucket = self._client.bucket(self.name)
            bucket.labels = LABELS
            bucket.versioning_enabled = True
            bucket.iam_configuration.uniform_bucket_level_access_enabled = True
            bucket.iam_configuration.public_access_prevention = "enforced"
            bucket.add_lifecycle_delete_rule(days_since_noncurrent_time=KEPT_DAYS)
            bucket.create(location=location, timeout=TIMEOUT_S)
            return [f"made in {location} with versioning", *self._grant(bucket, member, dry_run)]
        if not _is_ours(bucket):
            versions = "" if bucket.versioning_enabled else "; it keeps no versions of overwritten objects"
            return [f"exists and was not made by dtbench: left as it is{versions}"]
        return ["unchanged", *self._grant(bucket, member, dry_run)]

    def _grant(self, bucket: Any, member: Callable[[int, str], str] | None, dry_run: bool) -> list[str]:
        """Give the pods' account the right to write objects."""
        if member is None:
            return []
        bucket.reload(timeout=TIMEOUT_S)
        name = member(int(bucket.project_number or 0), self._client.project)
        policy = bucket.get_iam_policy(requested_policy_version=3, timeout=TIMEOUT_S)
        if any(b["role"] == ROLE and name in b["members"] and not b.get("condition") for b in policy.bindings):
            return [f"{ROLE} is granted already"]
        if dry_run:
            return [f"{ROLE} would be granted to {name}"]
        policy.version = 3
        policy.bindings = [*policy.bindings, {"role": ROLE, "members": {name}}]
        bucket.set_iam_policy(policy, timeout=TIMEOUT_S)
        return [f"{ROLE} granted to {name}"]

    def state(self) -> str:
        """What there is, in words."""

        def look() -> list[str]:
            bucket = self._client.lookup_bucket(self.name, timeout=TIMEOUT_S)
            if bucket is None:
                return ["missing"]
            return ["made" if _is_ours(bucket) else "exists and was not made by dtbench"]

        return _told(self.name, look)[0]

    def remove(self, *, dry_run: bool) -> str:
        """Delete the bucket if `up` has made it and nothing is in it; returns what happened in words."""

        def delete() -> list[str]:
            bucket = self._client.lookup_bucket(self.name, timeout=TIMEOUT_S)
            if bucket is None:
                return ["missing"]
            if not _is_ours(bucket):
                return ["exists and was not made by dtbench: left as it is"]
            if list(self._client.list_blobs(bucket, max_results=SOME, versions=True, timeout=TIMEOUT_S)):
                return [f"holds objects: left as it is. To delete it: gcloud storage rm --recursive gs://{self.name}"]
            if not dry_run:
                bucket.delete(timeout=TIMEOUT_S)
            return ["would be removed" if dry_run else "removed"]

        return _told(self.name, delete)[0]


def _is_ours(bucket: Any) -> bool:
    return all(bucket.labels.get(key) == value for key, value in LABELS.items())


def _told(name: str, ask: Callable[[], list[str]]) -> list[str]:
    try:
        return ask()
    except (api.GoogleAPICallError, api.RetryError, auth.GoogleAuthError, OSError) as error:
        raise HarnessError(f"bucket {name}: {' '.join(str(error).split())[:300]}") from None
