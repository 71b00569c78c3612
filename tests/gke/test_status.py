"""Status lines from the API's JSON, as real clusters give it."""

import itertools

import pytest
from snakemake_executor_plugin_gke.status import Phase, clock, culprit, phase, roll_call
from snakemake_executor_plugin_gke.submission import Action, Submission, decide, last_pod_record, later_attempts
from snakemake_executor_plugin_gke.telling import Reason, Teller, explain, inert, waiting_reason

from tests.gke.specs import make_spec

NOW = "2026-11-30T10:02:11Z"


def job(*conditions, **status):
    listed = [{"type": c, "status": "True", "reason": f"Because{c}", "message": "so"} for c in conditions]
    return {
        "metadata": {"name": "job", "creationTimestamp": NOW},
        "spec": {},
        "status": status | {"conditions": listed},
    }


def pod(node=None, waiting=None, conditions=(), index=0, ended=None, name="pod"):
    state = [{"state": {"waiting": waiting}}] if waiting else [{"state": {"terminated": ended}}] if ended else []
    labels = {"batch.kubernetes.io/job-name": "job", "batch.kubernetes.io/job-completion-index": str(index)}
    return {
        "metadata": {"name": name, "uid": "u1", "creationTimestamp": NOW, "labels": labels},
        "spec": {"nodeName": node} if node else {},
        "status": {"containerStatuses": state, "conditions": list(conditions)},
    }  # fmt: skip


def event(reason, message, count=1, last=NOW, uid="u1", **more):
    about = {"involvedObject": {"uid": uid}, "reason": reason, "message": message}
    return about | {"count": count, "firstTimestamp": NOW, "lastTimestamp": last} | more


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (job("Complete", "SuccessCriteriaMet"), Phase.COMPLETE),
        (job("Failed", "FailureTarget"), Phase.FAILED),
        (job("FailureTarget", active=1), Phase.WAITING),
        (job("Suspended"), Phase.SUSPENDED),
        (job(active=1, ready=1), Phase.RUNNING),
        (job(active=1, ready=0), Phase.WAITING),
        (job(), Phase.WAITING),
        ({"metadata": {"deletionTimestamp": NOW}, "spec": {}, "status": {"ready": 1}}, Phase.DELETING),
    ],
)
def test_phase(given, expected):
    assert phase(given) is expected


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("given", [None, job(ready=1), job(), job("Complete"), job("Failed"), job("Suspended")])
def test_a_record_is_collected_whatever_the_job_says(seen, given):
    assert decide(seen, given, recorded=True) is Action.COLLECT


def test_what_an_attempt_without_a_record_needs():
    assert decide(False, None, recorded=False) is Action.CREATE
    assert decide(True, None, recorded=False) is Action.VANISHED
    for seen, given in itertools.product([False, True], [job(), job(ready=1), job("Suspended")]):
        assert decide(seen, given, recorded=False) is Action.WAIT
    for seen, given in itertools.product([False, True], [job("Complete"), job("Failed")]):
        assert decide(seen, given, recorded=False) is Action.AUTOPSY


RUNS = {"type": "Ready", "status": "True"}


def of_two(**status):
    return job(**status) | {"spec": {"parallelism": 2}}


def test_a_run_needs_a_pod_on_every_node():
    assert phase(of_two(ready=1)) is Phase.WAITING
    assert phase(of_two(ready=2)) is Phase.RUNNING
    assert phase(of_two(ready=1, succeeded=1)) is Phase.RUNNING, "node 0 has delivered, the other ends"


def test_a_wait_names_the_nodes_that_wait():
    said = [event("FailedScheduling", "0/1 nodes are available")]
    text = waiting_reason([pod("a", conditions=[RUNS]), pod(index=1)], said, of_two(ready=1)).text
    assert text == "node 1 of 2: FailedScheduling: 0/1 nodes are available"
    text = waiting_reason([pod(), pod(index=1)], said, of_two()).text
    assert text == "FailedScheduling: 0/1 nodes are available", "the whole run waits"
    broken = pod("b", {"reason": "ImagePullBackOff", "message": "no"}, index=1)
    reason = waiting_reason([pod("a", conditions=[RUNS]), broken], [], of_two(ready=1))
    assert (reason.text, reason.stuck) == ("node 1 of 2: ImagePullBackOff: no", True)
    assert "node 1 of 2: no pod yet" in waiting_reason([pod("a", conditions=[RUNS])], [], of_two(ready=1)).text


def test_the_pod_that_failed_first_is_the_culprit():
    taken = pod("a", ended={"exitCode": 143, "finishedAt": "10:00", "reason": "Error"})
    oom = pod("b", index=1, ended={"exitCode": 137, "finishedAt": "10:01", "reason": "OOMKilled"}, name="x")
    assert culprit([taken, oom]) is oom
    assert culprit([taken, pod(index=1)]) is taken, "nobody failed: node 0 knows most"
    assert roll_call([taken, oom], 4)[1:] == [
        "node 1: x: on b: OOMKilled, exit status 137", "node 2: no pod", "node 3: no pod",
    ]  # fmt: skip
    assert roll_call([pod(index=0)], 1) == ["node 0: pod: never came: no node was found for it"]


def test_the_most_telling_reason_comes_first():
    events = [
        event("FailedScaleUp", "out of resources", 7, last="2026-11-30T10:09:00Z"),
        event("TriggeredScaleUp", "earlier", last="2026-11-30T10:05:00Z"),
        event("FailedScheduling", "0/3 nodes are available", count=41, last="2026-11-30T10:30:00Z"),
        event("FailedScheduling", "of another pod", uid="u2", last="2026-11-30T11:00:00Z"),
        event("Pulled", "not about waiting", last="2026-11-30T12:00:00Z"),
    ]
    reason = waiting_reason([pod()], events, job())
    text = "FailedScaleUp: out of resources; FailedScheduling: 0/3 nodes are available"
    assert reason == Reason(f"{text} [no stock in the zone: wait, or add pools in other zones]", 7, NOW)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("failed quota: team: must specify limits.cpu for: harness", "the quota counts CPU limits"),
        ("maximum memory usage per Container is 1Gi, but limit is 8Gi", "a LimitRange of the namespace"),
        ('violates PodSecurity "restricted:latest"', "a policy of the cluster"),
        ("in-use QUOTA_EXCEEDED", "the project's quota"),
        ("3 Insufficient nvidia.com/gpu", ""),
    ],
)
def test_each_refusal_has_its_own_advice(words, expected):
    said = event("FailedCreate", f'pods "a-1" is forbidden: {words}', involvedObject={"name": "job"})
    text = waiting_reason([], [said], job()).text
    assert f"pod is forbidden: {words}" in text
    assert (expected in text) if expected else text.endswith(words)


def test_a_newer_api_event_counts_its_series():
    newer = event("FailedScheduling", "none", last=None, eventTime=NOW, firstTimestamp=None)
    newer |= {"count": None, "series": {"count": 9, "lastObservedTime": "2026-11-30T10:30:00.000000Z"}}
    assert waiting_reason([pod()], [newer], job()) == Reason("FailedScheduling: none", 9, NOW)


def test_without_events_the_pods_own_condition_speaks():
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    assert waiting_reason([pod(conditions=[unscheduled])], [], job()).text == "Unschedulable: 0/1 nodes"


def test_an_image_that_cannot_be_pulled_is_stuck():
    reason = waiting_reason([pod("n", {"reason": "ImagePullBackOff", "message": "Back-off"})], [], job())
    assert reason.stuck
    assert reason.text == "ImagePullBackOff: Back-off"


def test_a_pod_that_only_starts_is_not_stuck():
    reason = waiting_reason([pod("n", {"reason": "ContainerCreating"})], [], job())
    assert not reason.stuck
    assert reason.text == "starting on n"


def test_an_ending_pod_differs_from_a_lost_one():
    ending = pod("n")
    ending["metadata"]["deletionTimestamp"] = NOW
    assert waiting_reason([ending], [], job()).text == "its pod on n is ending"
    lost = pod("n")
    lost["status"]["phase"] = "Running"
    assert "the node may be lost" in waiting_reason([lost], [], job()).text
    lost["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert waiting_reason([lost], [], job()).text == "starting on n", "the Job's own count lags behind the pod"


def test_podless_and_suspended_jobs_say_so():
    assert "Job controller" in waiting_reason([], [], job()).text
    assert "queue" in waiting_reason([], [], job("Suspended")).text


def test_a_refused_pod_quotes_the_controller():
    words = 'pods "job-{}" is forbidden: exceeded quota: team, requested: pods=1, used: pods=9, limited: pods=9'
    said = [
        event("FailedCreate", words.format("x7k2p"), uid="j1", involvedObject={"kind": "Job", "name": "job"}),
        event("FailedCreate", "of another Job", uid="j2", involvedObject={"kind": "Job", "name": "job-2"}),
    ]
    given = waiting_reason([], said, job())
    assert given.text == "no pod yet: FailedCreate: pod is forbidden: " + words.partition("forbidden: ")[2]


def test_explain_leaves_running_and_finished_jobs_out():
    jobs = {"a": job(ready=1), "job": job(), "c": job("Complete")}
    assert list(explain(jobs, [pod()], [])) == ["job"]


def test_runs_waiting_for_one_reason_share_a_line():
    said = []
    teller = Teller(said.append)
    reasons = {f"run {n}": Reason("no node", 3, NOW) for n in range(5)}
    teller.waiting(reasons)
    teller.waiting(reasons)
    teller.waiting({k: Reason("no node", 4, NOW) for k in reasons})
    assert said == ["gke: waiting: 5 runs (run 0, run 1, run 2 and 2 more): no node (3 times since 11-30 10:02Z)"]
    teller.waiting(reasons | {"run 0": Reason("starting on n", 1, NOW)})
    assert said[1:] == [
        "gke: waiting: run 0: starting on n (since 11-30 10:02Z)",
        "gke: waiting: 4 runs (run 1, run 2, run 3 and 1 more): no node (3 times since 11-30 10:02Z)",
    ]


def test_trouble_is_reported_at_start_and_end():
    said = []
    teller = Teller(said.append)
    for _ in range(3):
        teller.trouble("bucket", "503")
    teller.well("bucket")
    teller.well("bucket")
    teller.trouble("bucket", "503")
    assert said == ["gke: 503", "gke: the bucket answers again", "gke: 503"]


def test_the_last_pods_record_is_found_by_number(tmp_path):
    attempt = Submission(make_spec(), tmp_path)
    blobs = dict.fromkeys(
        f"{attempt.remote}/{name}" for name in ("pods/9/record.json", "pods/10/record.json", "pods/11/try-1/rank-0.log")
    )
    assert last_pod_record(attempt, blobs) == "pods/10/record.json"
    assert last_pod_record(attempt, {}) is None


def test_later_attempts_are_found_in_the_bucket(tmp_path):
    attempt = Submission(make_spec(), tmp_path / "a1")
    run = attempt.remote.removesuffix("/a1")
    blobs = [f"{run}/{name}/record.json" for name in ("a1", "a2", "a10", "a2/pods/1", "ax")] + [
        f"{run}0/a9/record.json"
    ]
    later = later_attempts(attempt, blobs)
    assert [a.spec.identity.attempt for a in later] == [2, 10]
    assert [a.folder for a in later] == [tmp_path / "a2", tmp_path / "a10"]
    assert later[0].spec.run_hash() == attempt.spec.run_hash()


def test_text_from_outside_stays_one_harmless_line():
    said = []
    Teller(said.append).line("ok\x1b[2J\ngke: finished: forged \u202edesrever\u200b" + "x" * 5000)
    (line,) = said
    assert line.startswith("gke: ok [2J gke: finished: forged  desrever ")
    assert line.isprintable()
    assert len(line) < 2100
    assert inert("100 \u00b5s") == "100 \u00b5s"


def test_clock_is_short_and_says_its_zone():
    assert clock(NOW) == "11-30 10:02Z"
    assert clock("") == ""
