"""Scenario 5: reruns of what failed, and a study that is edited while its Jobs run; and its Jobs as YAML."""

import re

import pytest
import yaml
from kubernetes import client as kubernetes

from tests.cluster.lab.client import light_study

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")


def attempts(kube):
    """(config or repeat, attempt) of every Job."""
    labels = [j["metadata"]["labels"] for j in kube.jobs()]
    return sorted((x["dtbench/run"], x["dtbench/attempt"]) for x in labels)


def test_rerun_makes_jobs_only_for_what_failed(clone, kube, add_node):
    add_node()
    clone.platform("small-l4-x1", {**clone.entry(), "memory_gib": 0.02})
    both = light_study(repeats=2) | {"platforms": ["lab-l4-x1", "small-l4-x1"]}
    clone.write_study("lab", both)
    assert clone.run(*ONLY_RUNS, SNAKEMAKE_GKE_BACKOFF_LIMIT="0") == 0, clone.said()
    assert sorted(r.outcome for r in clone.records("lab").values()) == ["deadline"] * 2 + ["host_oom"] * 2
    first = attempts(kube)
    assert len(first) == 4
    assert clone.run(*ONLY_RUNS, "rerun=host_oom", SNAKEMAKE_GKE_BACKOFF_LIMIT="0") == 0, clone.said()
    new = set(attempts(kube)) - set(first)
    assert {attempt for _, attempt in new} == {"2"}
    assert len(new) == 2
    records = clone.records("lab")
    assert len(records) == 6
    assert sorted(p.rsplit("/", 1)[1] for p, r in records.items() if r.outcome == "host_oom") == [
        "a1",
        "a1",
        "a2",
        "a2",
    ]


def test_an_edited_study_runs_only_what_changed(clone, kube, add_node):
    clone.write_study("lab", light_study(repeats=2))
    first = clone.start(*ONLY_RUNS)
    clone.wait_until_said("gke: waiting: ")
    before = {j["metadata"]["name"] for j in kube.jobs()}
    clone.write_study("lab", light_study(repeats=3))
    second = clone.start(*ONLY_RUNS)
    clone.wait_until_said("3 runs: 1 Jobs to create, 2 to adopt")
    add_node()
    assert [first.wait(120), second.wait(120)] == [0, 0], clone.said()
    after = {j["metadata"]["name"] for j in kube.jobs()}
    assert before < after
    assert len(after) == 3
    clone.write_study("lab", light_study(repeats=3) | {"data": {"sequence_length": 32, "micro_batch": 1}})
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert len(kube.jobs()) == 6, "other specs, other names"
    assert len(clone.records("lab")) == 6, "nothing is overwritten"


def test_manifests_are_written_submitted_by_hand_and_adopted(clone, kube, add_node):
    clone.write_study("lab", light_study(repeats=2))
    assert clone.run("manifests", "--config", "study=lab", timeout_s=60) == 0, clone.said()
    files = sorted((clone.folder / "results/lab/manifests").glob("*.yaml"))
    assert len(files) == 2
    assert kube.jobs() == []
    for file in files:
        kube.create(yaml.safe_load(file.read_text()))
    add_node()
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert re.search("2 runs: 0 Jobs to create", clone.said())
    assert len(clone.records("lab")) == len(kube.jobs()) == 2
    assert clone.run("manifests", "--config", "study=lab", timeout_s=60) == 0, clone.said()
    assert not list((clone.folder / "results/lab/manifests").glob("*.yaml")), "nothing is missing any more"


@pytest.mark.parametrize("study", ["x" * 63, "9-to-5.v2", "a_b..c--d_e"])
def test_every_valid_study_name_makes_valid_jobs(study, kube, lab_spec, render):
    kube.create(render(lab_spec(study=study)), dry_run=True)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda job: job["spec"].update(backoffLimits=1), "unknown field"),
        (
            lambda job: job["spec"]["template"]["spec"]["containers"][0]["resources"].update(limits={}),
            "Limit must be set",
        ),
        (lambda job: job["metadata"]["labels"].update(bad="no spaces"), "a valid label"),
        (lambda job: job["spec"]["template"]["spec"].update(restartPolicy="Always"), "restartPolicy"),
        (lambda job: job["spec"].update(podFailurePolicy={"rules": [{"action": "Forget"}]}), "podFailurePolicy"),
    ],
    ids=["unknown-field", "gpu-without-limit", "bad-label", "restart-policy", "failure-policy"],
)
def test_a_wrong_field_is_refused(break_it, words, kube, lab_spec, render):
    job = render(lab_spec(study="lab"))
    break_it(job)
    with pytest.raises(kubernetes.ApiException) as refused:
        kube.create(job, dry_run=True)
    assert words in str(refused.value.body)


def test_a_refused_job_blocks_no_other(clone, kube, add_node):
    add_node()
    # Legal in a study, not in a node selector: only the API server can know.
    clone.platform("odd-l4-x1", {**clone.entry(), "machine_type": "not a label"})
    clone.write_study("lab", light_study() | {"platforms": ["lab-l4-x1", "odd-l4-x1"]})
    assert clone.run(*ONLY_RUNS) == 1
    assert re.search(r"gke: no result: odd-l4-x1 .*422.*nodeSelector", clone.said()), clone.said()
    assert [r.outcome for r in clone.records("lab").values()] == ["deadline"]
