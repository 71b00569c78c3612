"""What is made of a run whose pod left no record: from the log, from facts, and never `ok` without a record."""

import json

import pytest
from snakemake_executor_plugin_gke.autopsy import (
    RECORD_LINE,
    Morgue,
    conclude,
    corrected,
    diagnose,
    logging_query,
    recovered,
)
from snakemake_executor_plugin_gke.errors import Refused
from snakemake_executor_plugin_gke.status import NODE_LABEL, culprit, roll_call

from harness.contract.outcome import Diagnosis
from harness.contract.record import read_record
from tests.gke.specs import make_spec
from tests.gke.test_collect import FILES, SPEC, make_record


def facts(code=None, reason=None, log=(), waiting=None, pod_status=None):
    state = {"terminated": {"exitCode": code, "reason": reason}} if code is not None else {"waiting": waiting or {}}
    status = {"containerStatuses": [{"name": "harness", "state": state}]} | (pod_status or {})
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {}, "status": status}
    return {"job": {}, "pod": pod, "pods": [pod], "events": [], "log_tail": list(log), "cloud_logging": "q"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (facts(64, "Error", ["error: spec.json: data.micro_batch: found 0"]), "config_error"),
        (facts(74, "Error", ["error: gs://b: not uploaded: 403"]), "upload_failed"),
        (facts(137, "OOMKilled"), "host_oom"),
        (facts(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}), "image_pull"),
        (facts(143, "Error", pod_status={"reason": "Evicted", "message": "low on resource: memory"}), "evicted"),
    ],
)
def test_kubernetes_and_exit_codes_say_how_it_ended(given, expected):
    found = diagnose(given)
    assert found.outcome == expected
    assert found.evidence


def test_a_lost_delivered_record_is_never_ok():
    found = diagnose(facts(0, "Completed"))
    assert (found.outcome, found.confidence) == ("unknown", "low")
    assert "record and log are gone" in found.sentence
    gone = {"job": {}, "pod": None, "pods": [], "log_tail": None, "cloud_logging": "q"}
    assert diagnose(gone | {"events": [{"reason": "Completed", "message": "Job completed"}]}).outcome == "unknown"


class Shed:
    """A cluster that counts what it is asked to list."""

    namespace = "lab"

    def __init__(self, jobs):
        self.asked, self.jobs = [], jobs

    def node(self, name):
        return {"cloud.google.com/gke-spot": "true"}

    def pods(self, selector):
        self.asked.append("pods")
        return [
            {"metadata": {"name": f"{j}-1", "creationTimestamp": "", "labels": {"batch.kubernetes.io/job-name": j}},
             "spec": {"containers": [{}]}} for j in self.jobs
        ]  # fmt: skip

    def events(self, about):
        self.asked.append("events")
        return [{"involvedObject": {"name": f"{j}-1"}, "reason": "Killed"} for j in self.jobs]

    def log(self, pod, tail_lines):
        return pod


def test_many_autopsies_cost_one_more_list_a_poll():
    shed, said = Shed([f"job-{n}" for n in range(300)]), []
    morgue = Morgue(shed, said.append)
    morgue.new_poll("s")
    assert [morgue.facts(j, None) for j in shed.jobs] == [None] * 300
    assert shed.asked == ["pods"]
    morgue.new_poll("s")
    found = [morgue.facts(j, None) for j in shed.jobs]
    assert shed.asked == ["pods", "events"]
    assert found[7]["pod"]["metadata"]["name"] == "job-7-1"
    assert [e["reason"] for e in found[7]["events"]] == ["Killed"]
    assert found[7]["log_tail"] == ["job-7-1"]
    assert said == []


def test_without_list_permission_files_are_still_fetched():
    shed, said = Shed(["job"]), []

    def refuse(*_):
        raise Refused("403: cannot list resource")

    shed.pods = shed.events = refuse
    morgue = Morgue(shed, said.append)
    for _ in range(2):
        morgue.new_poll("s")
        found = morgue.facts("job", None)
    assert (found["pod"], found["events"]) == (None, [])
    assert [("pods" in line, "events" in line) for line in said] == [(True, False), (False, True)]


def test_the_errors_own_line_is_the_evidence():
    found = diagnose(facts(64, "Error", ["run ...", "error: spec.json: data.micro_batch: found 0"]))
    assert found.sentence == "spec.json: data.micro_batch: found 0"
    assert (found.evidence[0].line, found.evidence[0].text) == (2, "error: spec.json: data.micro_batch: found 0")


def test_a_record_is_recovered_from_the_log(tmp_path):
    line = RECORD_LINE + json.dumps(make_record(FILES).to_json())
    given = facts(74, "Error", ["ok: 100 tok/s", line, "error: gs://b: not uploaded: 403"])
    record = conclude(given, SPEC, tmp_path)
    assert (record.outcome, record.files) == ("ok", ())
    assert "Recovered from the pod's log" in record.notes[-1]
    assert read_record(tmp_path / "record.json") == record
    assert json.loads((tmp_path / "k8s.json").read_text())["pod"]["metadata"]["name"] == "p"


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_half_a_logged_record_is_refused(text):
    assert recovered(facts(74, "Error", [RECORD_LINE + text]), SPEC) is None


def test_another_runs_logged_record_is_refused():
    line = RECORD_LINE + json.dumps(make_record({}).to_json())
    assert recovered(facts(74, "Error", [line]), make_spec(repeat=2)) is None


def test_a_lost_pod_still_gives_a_record(tmp_path):
    given = {"job": {}, "pod": None, "pods": [], "events": [], "log_tail": None, "cloud_logging": "q"}
    record = conclude(given, SPEC, tmp_path)
    assert record.outcome == "unknown"
    assert read_record(tmp_path / "record.json") == record


def test_the_logging_query_names_cluster_objects_exactly():
    query = logging_query("lab", "job-1")
    assert 'resource.labels.namespace_name="lab"' in query
    assert 'labels."k8s-pod/batch_kubernetes_io/job-name"="job-1"' in query


def test_another_nodes_failure_corrects_a_preemption():
    ended = [
        {"terminated": {"exitCode": 143, "reason": "Error", "finishedAt": "2026-12-03T10:00:05Z"}},
        {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-12-03T10:00:00Z"}},
    ]
    pods = [
        {"kind": "Pod", "metadata": {"name": f"p{n}", "creationTimestamp": "", "labels": {NODE_LABEL: str(n)}},
         "spec": {"nodeName": f"host{n}"}, "status": {"containerStatuses": [{"name": "harness", "state": state}]}}
        for n, state in enumerate(ended)
    ]  # fmt: skip
    known = facts() | {"pods": pods, "pod": culprit(pods), "nodes": roll_call(pods, 2)}

    def recorded(name):
        return make_record({}, outcome=name, diagnosis=Diagnosis(outcome=name, confidence="high"))

    taken, own = recorded("preemption"), recorded("cuda_oom")
    found = corrected(taken, known)
    assert found.outcome == "host_oom"
    assert found.diagnosis.sentence.startswith("Node 1: ")
    assert any("p1: on host1: OOMKilled" in e.text for e in found.diagnosis.evidence)
    assert corrected(taken, known | {"nodes": None}) is taken, "a run on one node"
    assert corrected(own, known) is own, "node 0 knew the cause itself"
