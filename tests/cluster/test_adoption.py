"""Scenario 7: which Jobs a client takes for its own, what it replaces, and what it says when it leaves."""

import re
import signal
import time

import pytest
import yaml

from tests.cluster.lab.client import IMAGE, light_study
from tests.cluster.lab.process import until

pytestmark = pytest.mark.cluster
ONLY_RUNS = ("--until", "run", "--config", "study=lab")
OTHER = IMAGE.replace("0" * 12, "f" * 12)


def images(kube):
    return {j["metadata"]["uid"]: j["spec"]["template"]["spec"]["containers"][0]["image"] for j in kube.jobs()}


def leave(client):
    client.send_signal(signal.SIGINT)
    client.wait(20)


def test_a_changed_image_replaces_only_waiting_jobs(clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study(repeats=3, seconds=90))
    client = clone.start(*ONLY_RUNS)
    until(lambda: kube.running() and len(kube.jobs()) == 3, 90, "one running Job and two waiting ones")
    (pod,) = kube.running()
    running = next(
        j["metadata"]["uid"]
        for j in kube.jobs()
        if j["metadata"]["name"] == pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
    )
    leave(client)
    before = images(kube)
    client = clone.start(*ONLY_RUNS, SNAKEMAKE_GKE_IMAGE=OTHER)
    said = clone.wait_until_said(r"gke: 3 Jobs were made with other settings .*")
    assert "(image " in said
    assert "add --gke-replace-waiting" in said
    leave(client)
    assert images(kube) == before
    client = clone.start(*ONLY_RUNS, "--gke-replace-waiting", SNAKEMAKE_GKE_IMAGE=OTHER)
    clone.wait_until_said("2 have not started and are made anew; 1 go on")
    until(lambda: sorted(images(kube).values()).count(OTHER) == 2, 60, "two Jobs with the other image")
    assert images(kube)[running] == IMAGE
    leave(client)
    assert "Job was deleted" not in clone.said()


def test_a_strangers_job_is_left_alone(clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study(repeats=2))
    assert clone.run("manifests", "--config", "study=lab") == 0, clone.said()
    file = sorted((clone.folder / "results/lab/manifests").glob("*.yaml"))[0]
    job = yaml.safe_load(file.read_text())
    del job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]
    job["spec"]["suspend"] = True
    kube.create(job)
    name = job["metadata"]["name"]
    uid = next(j["metadata"]["uid"] for j in kube.jobs())
    assert clone.run(*ONLY_RUNS) == 1
    assert f"a Job named {name} exists that this executor has not made: it is left alone" in clone.said()
    assert uid in {j["metadata"]["uid"] for j in kube.jobs()}
    assert [r.outcome for r in clone.records("lab").values()] == ["deadline"]


def test_a_stopped_client_says_which_jobs_exist(api, clone, kube):
    runs = 24
    clone.write_study("lab", light_study(repeats=runs))
    api.fault = lambda method, path, body: time.sleep(0.8) if method == "POST" else None
    client = clone.start(*ONLY_RUNS, KUBECONFIG=str(api.kubeconfig))
    until(lambda: kube.jobs(), 60, "the first Job")
    leave(client)
    exist = len(kube.jobs())
    assert 0 < exist < runs, clone.said()
    said = re.search(r"detached; (\d+) Jobs go on, (\d+) were not made; .*", clone.said())
    assert said, clone.said()
    open_ = int((re.search(r"(\d+) more may exist", said[0]) or [0, 0])[1])
    assert int(said[1]) <= exist <= int(said[1]) + open_
    assert int(said[1]) + int(said[2]) + open_ == runs
    api.fault = lambda method, path, body: None
    client = clone.start(*ONLY_RUNS)
    clone.wait_until_said(f"{runs} runs: {runs - exist} Jobs to create, {exist} to adopt")
    until(lambda: len(kube.jobs()) == runs, 60, "all Jobs")
    leave(client)


def test_two_signals_under_cancel_delete_every_job(api, clone, kube):
    clone.write_study("lab", light_study(repeats=16))
    api.fault = lambda method, path, body: time.sleep(0.3) if method == "DELETE" else None
    client = clone.start(*ONLY_RUNS, "--gke-on-exit", "cancel", KUBECONFIG=str(api.kubeconfig))
    clone.wait_until_said("gke: waiting: ")
    client.send_signal(signal.SIGINT)
    clone.wait_until_said("gke: deleting 16 unfinished Jobs")
    client.send_signal(signal.SIGINT)
    client.wait(60)
    assert "gke: still deleting Jobs; one more signal leaves the rest" in clone.said()
    assert "Traceback" not in clone.said()
    until(lambda: not kube.jobs(), 20, "the Jobs to be deleted")


def test_a_fresh_clone_has_the_reruns_of_others(clone, new_clone, kube, add_node):
    add_node()
    clone.write_study("lab", light_study())
    assert clone.run(*ONLY_RUNS) == 0, clone.said()
    assert clone.run(*ONLY_RUNS, "rerun=deadline") == 0, clone.said()
    other = new_clone()
    other.write_study("lab", light_study())
    assert other.run(*ONLY_RUNS) == 0, other.said()
    assert [path[-2:] for path in other.records("lab")] == ["a1", "a2"]
    assert "a rerun that another clone has made" in other.said()
    assert len(kube.jobs()) == 2


def test_an_unservable_gpu_platform_starts_nothing(clone, kube):
    entry = {**clone.entry(), "device": "cuda", "gke_accelerator": None, "machine_type": None}
    clone.platform("bare-x1", entry)
    clone.write_study("lab", light_study() | {"platforms": ["lab-l4-x1", "bare-x1"]})
    assert clone.run(*ONLY_RUNS) == 1
    assert "platform bare-x1: gke_accelerator and machine_type not set" in clone.said()
    assert kube.jobs() == []
