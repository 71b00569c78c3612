"""Scenario 1: from a study to its report through the real API server, scheduler, Job controller and harness."""

import itertools
import json

import pytest
import yaml
from dtbench.cloud.spent import held

from tests.cluster.lab.client import ROOT, check_files, study

pytestmark = pytest.mark.cluster


def test_one_run_makes_one_job_and_record(clone, kube, bucket, add_node):
    add_node()
    clone.write_study("one", study(["ddp"]))
    assert clone.run("--until", "run", "--config", "study=one") == 0, clone.said()
    records = clone.records("one")
    assert [r.outcome for r in records.values()] == ["ok"], clone.said()
    assert len(kube.jobs()) == 1
    assert len(kube.pods()) == 1
    assert len(bucket.records()) == 1
    check_files(clone, "one")
    assert clone.parts() == []
    (path, record), *_ = records.items()
    facts = json.loads((clone.folder / "results/one" / path / "k8s.json").read_text())
    (pod,) = held(facts, record.ended_at)
    assert pod.requested_s <= pod.scheduled_s <= pod.started_s <= pod.ended_s, "what the run cost can be told"


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_the_quick_study_finishes_on_one_node(clone, new_clone, kube, bucket, add_node):
    add_node(gpus=4, machine_type="g2-standard-48", cpus=48, memory="192Gi")
    quick = yaml.safe_load((ROOT / "config" / "quick.yaml").read_text())
    # Four ranks share what may be two cores with the control plane: a step may be slow, only silence is an error.
    protocol = quick["protocol"] | {"stall_floor_s": 600.0}
    one_arm = quick | {"platforms": ["lab-l4-x4"], "arms": ["defaults"], "repeats": 1, "protocol": protocol}
    entry = {**clone.entry(), "world_size": 4, "machine_type": "g2-standard-48", "cpus": 4, "memory_gib": 100}
    clones = [clone, new_clone()]
    for each in clones:
        each.platform("lab-l4-x4", entry)
        each.write_study("fast", one_arm)

    def uploads():
        """Pods upload when they start, on each step and when they end, however slow the machine."""
        return sum(count for request, count in bucket.requests.items() if request.startswith("POST /upload"))

    # As long as the harness itself gives ranks that start.
    assert clone.run("--config", "study=fast", timeout_s=600, alive=uploads) == 0, clone.said()
    assert [r.outcome for r in clone.records("fast").values()] == ["ok"] * len(quick["configs"]), clone.said()
    assert len(kube.jobs()) == len(kube.pods()) == len(bucket.records()) == len(quick["configs"])
    check_files(clone, "fast")
    ends = [p["status"]["containerStatuses"][0]["state"]["terminated"] for p in kube.pods()]
    spans = sorted((e["startedAt"], e["finishedAt"]) for e in ends)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans)), spans
    # A clone without a cluster makes the same report of the same records.
    other = clones[1]
    (clone.folder / "results").rename(other.folder / "results")
    report = other.folder / "results" / "fast" / "report.md"
    through_gke = report.read_text()
    assert all(config in through_gke for config in quick["configs"])
    for profile in ("local", "gke"):
        report.unlink()
        nothing = {"KUBECONFIG": "/nonexistent", "SNAKEMAKE_GKE_IMAGE": "", "SNAKEMAKE_GKE_BUCKET": ""}
        assert other.run("report", "--config", "study=fast", profile=profile, **nothing) == 0, other.said()
        assert report.read_text() == through_gke


def test_a_frontier_search_runs_as_a_job(clone, new_clone, kube, bucket, add_node):
    add_node()
    content = study(["ddp"], frontier=[{"over": "micro_batch", "limit": 2}])
    clone.write_study("lab", content)
    assert clone.run("frontier", "--config", "study=lab") == 0, clone.said()
    (found,) = (clone.folder / "results/lab/frontier").rglob("frontier.json")
    result = json.loads(found.read_text())
    assert (result["largest_fit"], result["ended"]) == (2, "limit"), clone.said()
    assert len(kube.jobs()) == len(kube.pods()) == 1
    assert [n for n in bucket.objects() if n.endswith("/frontier.json")]
    assert len(bucket.records()) == len(result["probes"]), "each probe's record is in the bucket"
    assert (clone.folder / "results/lab/frontier.csv").exists()
    other = new_clone()
    other.write_study("lab", content)
    assert other.run("frontier", "--config", "study=lab") == 0, other.said()
    assert "0 Jobs to create, 0 to adopt, 1 results to collect" in other.said()
    assert len(kube.jobs()) == 1
