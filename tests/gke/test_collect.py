"""Collecting: checked, atomic, and never outside the attempt's folder."""

import dataclasses
import hashlib
import json
import subprocess
import sys

import pytest
from snakemake_executor_plugin_gke.autopsy import RECORD_LINE, conclude, diagnose, logging_query, recovered
from snakemake_executor_plugin_gke.collect import Damaged, collect
from snakemake_executor_plugin_gke.errors import Unavailable

from harness.contract.diagnosis import Diagnosis
from harness.contract.parts import part_of
from harness.contract.record import RECORD_VERSION, File, Record, read_record
from tests.gke.specs import make_spec

SPEC = make_spec()


class Shelf:
    """A bucket in memory; `broken` names fail as a bucket out of reach does."""

    def __init__(self, objects):
        self.objects, self.broken, self.fetched = objects, set(), []

    def read(self, name):
        return self.objects[name]

    def fetch(self, name, path):
        if name in self.broken:
            raise Unavailable("bucket: 503")
        self.fetched.append(name)
        path.write_bytes(self.objects[name])


def make_record(files, **changes):
    listed = tuple(File(path=p, size_bytes=len(c), sha256=hashlib.sha256(c).hexdigest()) for p, c in files.items())
    record = Record(
        record_version=RECORD_VERSION, source=None, spec=SPEC, spec_hash=SPEC.hash(), outcome="ok",
        diagnosis=Diagnosis(outcome="ok", confidence="high"), started_at=None, ended_at=None, wall_s=1.0, tries=(),
        measured=None, resolved=None, environment=None, files=listed,
    )  # fmt: skip
    return dataclasses.replace(record, **changes)


def shelf_of(files, base="at/", **changes):
    record = json.dumps(make_record(files, **changes).to_json()).encode()
    return Shelf({f"{base}{p}": c for p, c in files.items()} | {f"{base}record.json": record})


FILES = {"spec.json": b"{}", "try-1/rank-0.log": b"step 1\n"}


def test_everything_arrives_and_the_record_last(tmp_path):
    shelf = shelf_of(FILES)
    record = collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert read_record(tmp_path / "record.json") == record
    assert {p: (tmp_path / p).read_bytes() for p in FILES} == FILES
    assert list(tmp_path.rglob("*.part")) == []


def test_a_bucket_that_fails_midway_leaves_no_record_and_the_next_try_fetches_the_rest(tmp_path):
    shelf = shelf_of(FILES)
    shelf.broken = {"at/try-1/rank-0.log"}
    with pytest.raises(Unavailable):
        collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert not (tmp_path / "record.json").exists()
    shelf.broken = set()
    collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert shelf.fetched == ["at/spec.json", "at/try-1/rank-0.log"], "what had arrived was not fetched again"


def test_a_file_that_is_not_what_the_record_lists_is_refused(tmp_path):
    shelf = shelf_of(FILES)
    shelf.objects["at/try-1/rank-0.log"] = b"step 2\n"
    with pytest.raises(Damaged, match="record says"):
        collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert not (tmp_path / "record.json").exists()
    assert not (tmp_path / "try-1/rank-0.log").exists()


@pytest.mark.parametrize("path", ["../escaped", "/etc/escaped", "a/../../escaped"])
def test_a_record_that_lists_a_path_outside_is_refused(path, tmp_path):
    with pytest.raises(Damaged, match="outside the attempt's folder"):
        collect(shelf_of({path: b"x"}), "at", "record.json", tmp_path / "attempt", SPEC)
    assert list(tmp_path.rglob("escaped")) == []


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"record_version": 1}'])
def test_what_is_not_a_record_is_refused(raw, tmp_path):
    with pytest.raises(Damaged, match="not a record"):
        collect(Shelf({"at/record.json": raw}), "at", "record.json", tmp_path, SPEC)


def test_a_record_of_another_spec_is_refused(tmp_path):
    with pytest.raises(Damaged, match="found a record of spec"):
        collect(shelf_of(FILES), "at", "record.json", tmp_path, make_spec(repeat=2))


def test_the_record_of_a_pod_that_was_taken_away_comes_with_the_files_beside_it(tmp_path):
    shelf = shelf_of(FILES, "at/pods/2/")
    collect(shelf, "at", "pods/2/record.json", tmp_path, SPEC)
    assert (tmp_path / "try-1/rank-0.log").read_bytes() == b"step 1\n"


def test_a_killed_clients_leftovers_are_removed_before_a_file_is_fetched(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = part_of(tmp_path / "try-1/rank-0.log", gone.pid)
    left.parent.mkdir()
    left.touch()
    collect(shelf_of(FILES, "at/"), "at", "record.json", tmp_path, SPEC)
    assert list(tmp_path.rglob("*.part")) == []


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


def test_the_errors_own_line_is_the_evidence():
    found = diagnose(facts(64, "Error", ["run ...", "error: spec.json: data.micro_batch: found 0"]))
    assert found.sentence == "spec.json: data.micro_batch: found 0"
    assert (found.evidence[0].line, found.evidence[0].text) == (2, "error: spec.json: data.micro_batch: found 0")


def test_a_record_on_the_log_is_recovered_with_its_numbers_and_without_its_files(tmp_path):
    line = RECORD_LINE + json.dumps(make_record(FILES).to_json())
    given = facts(74, "Error", ["ok: 100 tok/s", line, "error: gs://b: not uploaded: 403"])
    record = conclude(given, SPEC, tmp_path)
    assert (record.outcome, record.files) == ("ok", ())
    assert "Recovered from the pod's log" in record.notes[-1]
    assert read_record(tmp_path / "record.json") == record
    assert json.loads((tmp_path / "k8s.json").read_text())["pod"]["metadata"]["name"] == "p"


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_half_a_record_on_the_log_is_not_taken_for_one(text):
    assert recovered(facts(74, "Error", [RECORD_LINE + text]), SPEC) is None


def test_a_record_of_another_run_on_the_log_is_not_taken():
    line = RECORD_LINE + json.dumps(make_record({}).to_json())
    assert recovered(facts(74, "Error", [line]), make_spec(repeat=2)) is None


def test_a_pod_that_is_gone_still_gives_a_record(tmp_path):
    given = {"job": {}, "pod": None, "pods": [], "events": [], "log_tail": None, "cloud_logging": "q"}
    record = conclude(given, SPEC, tmp_path)
    assert record.outcome == "unknown"
    assert read_record(tmp_path / "record.json") == record


def test_the_logging_query_names_cluster_objects_exactly():
    query = logging_query("lab", "job-1")
    assert 'resource.labels.namespace_name="lab"' in query
    assert 'labels."k8s-pod/batch_kubernetes_io/job-name"="job-1"' in query
