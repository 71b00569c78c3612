"""What Kubernetes says, in every form people have it: a pod, a job, lists, events."""

from typing import Any

import pytest

from harness.diagnosis.judging.pod import events_text, read_pods


def pod(reason: str = "", message: str = "", conditions: list[Any] | None = None, **state: Any) -> dict[str, Any]:
    containers = [{"name": "main", "state": state}] if state else []
    return {
        "kind": "Pod",
        "status": {
            "reason": reason,
            "message": message,
            "conditions": conditions or [],
            "containerStatuses": containers,
        },
    }


def target(reason: str, message: str = "", status: str = "True") -> dict[str, str]:
    return {"type": "DisruptionTarget", "status": status, "reason": reason, "message": message}


ERROR_137 = {"exitCode": 137, "reason": "Error"}
PRESSURE = "The node was low on resource: memory."
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."


@pytest.mark.parametrize(("document", "outcome"), [
    (pod("Terminated", SHUTDOWN, terminated=ERROR_137), "preemption"),
    (pod("NodeShutdown", terminated=ERROR_137), "preemption"),
    (pod("NodeLost"), "preemption"),
    (pod(conditions=[target("PreemptionByScheduler")], terminated=ERROR_137), "preemption"),
    (pod(conditions=[target("DeletionByTaintManager")], terminated=ERROR_137), "preemption"),
    (pod(conditions=[target("DeletionByPodGC")]), "preemption"),
    (pod(conditions=[target("EvictionByEvictionAPI")], terminated=ERROR_137), "preemption"),
    (pod(conditions=[target("TerminationByKubelet", SHUTDOWN)], terminated=ERROR_137), "preemption"),
    (pod(conditions=[target("TerminationByKubelet", PRESSURE)], terminated=ERROR_137), "evicted"),
    (pod("Evicted", PRESSURE, [target("TerminationByKubelet")]), "evicted"),
    (pod("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi."), "evicted"),
    (pod(terminated={"exitCode": 137, "reason": "OOMKilled"}), "host_oom"),
    (pod("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), "deadline"),
    (pod("OutOfnvidia.com/gpu"), "unschedulable"),
    (pod(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"}), "image_pull"),
    (pod(waiting={"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}), "config_error"),
    (pod(waiting={"reason": "RunContainerError", "message": "nvml error: driver not loaded"}), "driver_mismatch"),
    (pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]),
     "unschedulable"),
    ({"kind": "Job", "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}},
     "deadline"),
    ({"kind": "List", "items": [pod(), pod("NodeShutdown")]}, "preemption"),
])  # fmt: skip
def test_verdict(document: Any, outcome: str) -> None:
    verdicts = read_pods(document).verdicts
    assert verdicts[0].outcome == outcome
    assert verdicts[0].evidence[0].text


@pytest.mark.parametrize("document", [
    None, [], {}, {"items": None}, {"status": None}, "text",
    {"status": {"conditions": [3], "containerStatuses": [None]}},
    pod(conditions=[target("PreemptionByScheduler", status="False")]),
    pod(terminated={"exitCode": 1, "reason": "Error"}),
    pod(running={"startedAt": "now"}),
])  # fmt: skip
def test_no_verdict(document: Any) -> None:
    assert read_pods(document).verdicts == []


def test_exit_code_and_start() -> None:
    facts = read_pods(pod(terminated={"exitCode": 3, "reason": "Error"}))
    assert (facts.exit_code, facts.started) == (3, True)
    assert read_pods({"status": {"phase": "Succeeded"}}).exit_code == 0


def test_events_in_the_order_of_time() -> None:
    events = {
        "items": [
            {"lastTimestamp": "2025-03-02T10:02:00Z", "reason": "Started", "message": "Started\ncontainer"},
            {"lastTimestamp": "2025-03-02T10:01:00Z", "reason": "FailedScheduling", "message": "0/3 nodes"},
        ]
    }
    lines = events_text(events).read().decode().splitlines()
    assert [line.split("\t")[1] for line in lines] == ["FailedScheduling", "Started"]
    assert lines[1].endswith("Started container")


@pytest.mark.parametrize("status", [
    {"conditions": 5}, {"conditions": {"type": "Ready"}}, {"containerStatuses": 5}, {"containerStatuses": [None, 1]},
    {"conditions": [], "initContainerStatuses": "none"}, {"reason": {"a": 1}, "message": [1]}, [],
])  # fmt: skip
def test_a_status_of_an_odd_shape_says_nothing(status: Any) -> None:
    assert read_pods({"kind": "Pod", "status": status}).verdicts == []
