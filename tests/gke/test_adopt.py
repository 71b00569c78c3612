"""Whether a Job belongs to a run, and with which settings it was created."""

import copy
import json

import pytest
from msgspec import structs
from snakemake_executor_plugin_gke.adopt import differences, elsewhere, foreign, started, told
from snakemake_executor_plugin_gke.manifest import render_manifest

from tests.gke.specs import IMAGE, make_settings, make_spec

SPEC = make_spec()


def made(spec=SPEC, **settings):
    """A Job as the API server lists it."""
    job = render_manifest(spec, make_settings(**settings))
    return job | {"metadata": job["metadata"] | {"uid": "u1", "resourceVersion": "1"}, "status": {}}


def test_a_job_of_this_run_is_its_own():
    assert foreign(made(), SPEC) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda job: job["metadata"].pop("labels"), "this executor has not made"),
        (lambda job: job["metadata"]["labels"].update({"dtbench/spec-hash": "f" * 40}), "for the spec ffffffffffff"),
        (lambda job: _carry(job, "{"), "carries a spec that cannot be read"),
        (lambda job: _carry(job, json.dumps(make_spec(repeat=2).to_json())), "but its name belongs to"),
    ],
)
def test_a_strangers_job_is_named_and_left_alone(change, words):
    job = copy.deepcopy(made())
    change(job)
    said = foreign(job, SPEC)
    assert words in said
    assert SPEC.job_name() in said
    assert "left alone" in said


def _carry(job, text):
    job["spec"]["template"]["metadata"]["annotations"]["dtbench/spec"] = text


def test_what_a_job_was_made_with_is_compared():
    other = IMAGE.replace("0" * 12, "f" * 12)
    assert differences(made(), make_settings(), "l4-x4") == {}
    found = differences(made(queue="low"), make_settings(image=other), "l4-x4")
    assert found == {"image": (IMAGE, other), "queue": ("low", "")}
    assert told(found) == f"image ...{IMAGE[-12:]} instead of ...{other[-12:]}, queue low instead of none"


def test_a_job_of_an_older_version_differs():
    job = made()
    del job["metadata"]["annotations"]["dtbench/made-with"]
    assert "another version" in told(differences(job, make_settings(), "l4-x4"))


def test_settings_that_shape_no_job_make_no_difference():
    assert differences(made(), make_settings(poll_interval=5, on_exit="cancel", replace_waiting=True), "l4-x4") == {}


def pod(node, phase="Pending"):
    labels = {"batch.kubernetes.io/job-name": SPEC.job_name()}
    return {"metadata": {"labels": labels}, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pods", "status", "expected"),
    [
        ([], {}, False),
        ([pod(None)], {"active": 1}, False),
        ([pod("n")], {"active": 1}, True),
        ([pod("gone", "Failed"), pod(None)], {"active": 1}, False),
        ([], {"active": 1, "ready": 1}, True),
        ([], {"conditions": [{"type": "Complete", "status": "True"}]}, True),
    ],
)
def test_a_scheduled_pod_means_the_job_started(pods, status, expected):
    assert started(made() | {"status": status}, pods) is expected


def test_a_later_attempt_of_another_clone_is_found():
    second = made(make_spec(attempt=2))
    over = made(make_spec(attempt=3)) | {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    assert elsewhere([made(), second, over, made(make_spec(repeat=2, attempt=5))], SPEC) == 2
    assert elsewhere([made(), second], structs.replace(make_spec(attempt=2))) is None
