"""Ends of submissions: each batch gets its own, one failure loses none, missing rights hold nobody back."""

import threading
import time
from types import SimpleNamespace

import pytest
from google.auth import exceptions as auth
from google.cloud import storage
from snakemake_executor_plugin_gke.bucket import Bucket
from snakemake_executor_plugin_gke.ends import Ends
from snakemake_executor_plugin_gke.errors import Denied, Expired, Unavailable
from snakemake_executor_plugin_gke.fleet import Fleet
from snakemake_executor_plugin_gke.manifest import render_manifest
from snakemake_executor_plugin_gke.submission import Action, Submission
from snakemake_executor_plugin_gke.telling import Reason, Teller

from tests.gke.specs import make_settings, make_spec

STUCK = Reason("ImagePullBackOff: no such image", stuck=True)


class Cluster:
    """A cluster whose Jobs have no pods, with calls that a test may replace."""

    namespace, calls = "lab", {}

    def __init__(self, jobs=()):
        self.listed, self.made, self.deleted = list(jobs), [], []

    def jobs(self, selector):
        return {job["metadata"]["name"]: job for job in self.listed}

    def pods(self, selector):
        return []

    def events(self, about=""):
        return []

    def node(self, name):
        return {}

    def create(self, manifest, *, dry_run=False):
        self.made.append(manifest["metadata"]["name"])
        return manifest

    def delete(self, name, unchanged=None):
        self.deleted.append(name)
        return True


def denied(*_, **__):
    raise Denied("cluster: 403: lacks a right")


def job_of(submission, **settings):
    """Its Job as the API server would list it, still waiting."""
    job = render_manifest(submission.spec, make_settings(**settings))
    job["metadata"] |= {"uid": submission.name, "creationTimestamp": "2026-12-01T00:00:00Z", "resourceVersion": "1"}
    return job


@pytest.fixture
def submissions(tmp_path):
    return [Submission(make_spec(repeat=n), tmp_path / str(n)) for n in (1, 2)]


def new_ends(cluster, said, **settings):
    return Ends(cluster, None, make_settings(**settings), Teller(said.append), lambda error: said.append(str(error)))


def test_a_batch_leaves_results_of_another_batch(submissions, monkeypatch):
    ends = new_ends(Cluster(), [])
    monkeypatch.setattr(ends, "_collect", lambda submission, *_: submission)
    first, second = submissions
    todo = {action: [] for action in Action}
    ends.begin(todo | {Action.COLLECT: [first, second]}, "s", {}, {})
    assert ends.ended([second.name], None) == [second]
    assert ends.ended([second.name], None) == []
    assert ends.ended([first.name, second.name], None) == [first]


def test_a_batch_waits_for_its_own_downloads_only(submissions, monkeypatch):
    release, ends = threading.Event(), new_ends(Cluster(), [])
    first, second = submissions
    monkeypatch.setattr(ends, "_collect", lambda s, *_: s if s is second or release.wait(30) else None)
    todo = {action: [] for action in Action}
    ends.begin(todo | {Action.COLLECT: [first, second]}, "s", {}, {})
    try:
        assert ends.ended([second.name], None) == [second]
        assert ends.ended([first.name], 0.0) == []
    finally:
        release.set()


def facts(name):
    return {"job": {"name": name}, "pod": None, "pods": [], "events": [], "log_tail": [], "cloud_logging": "q"}


def stick(ends, submissions, monkeypatch):
    """Say of all of them that their containers have failed to start for too long."""
    monkeypatch.setattr(ends._morgue, "facts", lambda name, job, **_: facts(name))
    for submission in submissions:
        submission.stuck_at_s = time.monotonic() - 1e6
    return [ends.stuck(s, STUCK, job_of(s)) for s in submissions]


def test_one_unanswered_request_loses_no_other_end(submissions, monkeypatch):
    cluster, said = Cluster(), []
    ends = new_ends(cluster, said)
    first, second = submissions

    def delete(name):
        if name == second.name:
            raise Unavailable("cluster: no answer")

    cluster.delete = delete
    assert stick(ends, submissions, monkeypatch) == [first, None]
    assert "cluster: no answer" in said
    assert (first.folder / "record.json").exists()
    assert not (second.folder / "record.json").exists()


def test_a_run_whose_job_stays_still_ends(submissions, monkeypatch):
    cluster, said = Cluster(), []
    cluster.delete = denied
    assert stick(new_ends(cluster, said), submissions, monkeypatch) == submissions
    assert any("keeps running and holds its node" in line for line in said)


def new_fleet(cluster, said, **settings):
    bucket = SimpleNamespace(list=lambda *_: {}, calls={})
    return Fleet(cluster, bucket, make_settings(status_interval=1, **settings), said.append)


def test_without_rights_on_pods_waits_are_told(submissions):
    cluster, said = Cluster([job_of(s) for s in submissions]), []
    cluster.pods = denied
    new_fleet(cluster, said).submit(submissions)
    assert any("lacks a right; the client goes on, but its reasons for waiting lack pods" in line for line in said)
    assert any("not running: without the right to list pods" in line for line in said)
    assert not any("no pod yet" in line or "every Job is kept" in line for line in said)


def test_without_rights_on_pods_events_still_explain(submissions):
    first, second = submissions
    cluster, said = Cluster([job_of(first)]), []
    cluster.pods = denied
    cluster.events = lambda about="": [
        {"involvedObject": {"name": f"{first.name}-x1"}, "reason": "FailedScheduling", "message": "0/2 nodes"}
    ]
    new_fleet(cluster, said).submit(submissions)
    assert any("FailedScheduling: 0/2 nodes" in line for line in said)
    assert cluster.made == [second.name]


def test_without_rights_on_pods_no_job_is_replaced(submissions):
    first, second = submissions
    cluster, said = Cluster([job_of(first, backoff_limit=5)]), []
    cluster.pods = denied
    new_fleet(cluster, said, replace_waiting=True).submit(submissions)
    assert cluster.deleted == []
    assert cluster.made == [second.name]
    assert any("no Job is replaced" in line for line in said)


def test_a_new_login_is_taken_up(monkeypatch):
    opened = []

    class Client:
        def __init__(self, **_):
            opened.append(self)

        def bucket(self, name):
            return None

        def list_blobs(self, *_, **__):
            if self is opened[0]:
                raise auth.RefreshError("invalid_grant")
            return []

    monkeypatch.setattr(storage, "Client", Client)
    bucket = Bucket("gs://bench")
    with pytest.raises(Expired, match="run gcloud auth application-default login"):
        bucket.list("s", ("record.json",))
    assert bucket.list("s", ("record.json",)) == {}
