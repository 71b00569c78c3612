"""Scenario 1: from a study to records through the real API server, scheduler, Job controller and harness."""

import pytest

from tests.cluster.lab.client import study

pytestmark = pytest.mark.cluster


def test_one_run_becomes_one_job_one_pod_and_one_record(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("one", study(["ddp"]))
    assert clone.run("--until", "run", "--config", "study=one") == 0, clone.said()
    records = clone.records("one")
    assert [r.outcome for r in records.values()] == ["ok"], clone.said()
    assert len(kube.jobs()) == 1
    assert len(kube.pods()) == 1
    assert len(bucket.records()) == 1
    assert clone.parts() == []
