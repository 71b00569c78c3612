"""Whether a Job of a run's name is that run's own, and which settings it was made with: pure."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec, parse_spec

from .manifest import MADE_WITH, MANAGED_BY, SPEC_HASH, label_value, labels_of, made_with, spec_of
from .settings import ExecutorSettings
from .status import Phase, job_of, phase

Json = dict[str, Any]


def foreign(job: Json, spec: RunSpec, options: Sequence[str] = ()) -> str | None:
    """Why the Job of this name is not this run's (with `options`: this search's); None when it is."""
    name, labels = job["metadata"]["name"], job["metadata"].get("labels") or {}
    alone = "it is left alone; delete it or rename it, then give the same command again"
    if labels.get("app.kubernetes.io/managed-by") != MANAGED_BY:
        return f"a Job named {name} exists that this executor has not made: {alone}"
    expected = labels_of(spec, options)[SPEC_HASH]
    if (found := labels.get(SPEC_HASH, "none")) != expected:
        return f"a Job named {name} exists for the spec {found[:12]}, expected {expected[:12]}: {alone}"
    try:
        carried = parse_spec(spec_of(job)).hash()
    except SpecError as error:
        return f"the Job {name} carries a spec that cannot be read ({error}): {alone}"
    if carried != spec.hash():
        return f"the Job {name} carries the spec {carried[:12]}, but its name belongs to {spec.hash()[:12]}: {alone}"
    return None


def differences(job: Json, settings: ExecutorSettings, platform: str) -> dict[str, tuple[str, str]]:
    """Settings that changed since the Job was made: name -> (value then, value now)."""
    now = made_with(settings, platform)
    try:
        before = json.loads((job["metadata"].get("annotations") or {})[MADE_WITH])
        before = {str(name): str(value) for name, value in before.items()}
    except (KeyError, ValueError, AttributeError):
        return {"settings": ("those of another version of this executor", "")}
    return {name: (before.get(name, ""), value) for name, value in now.items() if before.get(name, "") != value}


def told(different: dict[str, tuple[str, str]]) -> str:
    """Differences in words: `image ...0f3a instead of ...77b2`."""

    def short(value: str) -> str:
        return f"...{value[-12:]}" if len(value) > 60 else value or "none"

    return ", ".join(f"{name} {short(old)} instead of {short(new)}" for name, (old, new) in sorted(different.items()))


def started(job: Json, pods: Iterable[Json]) -> bool:
    """Whether a Job runs or a node is starting its pod; such a Job is not replaced."""
    if phase(job) not in (Phase.WAITING, Phase.SUSPENDED):
        return True
    name = job["metadata"]["name"]
    mine = (
        p for p in pods if job_of(p) == name and (p.get("status") or {}).get("phase") in (None, "Pending", "Running")
    )
    return any(p["spec"].get("nodeName") for p in mine)


def elsewhere(jobs: Iterable[Json], spec: RunSpec) -> int | None:
    """The number of a later attempt of the same run whose Job is not over; None when there is none."""
    run, number = labels_of(spec)["dtbench/run"], spec.identity.attempt
    study = label_value(spec.identity.study)
    found = []
    for job in jobs:
        labels = job["metadata"].get("labels") or {}
        if labels.get("dtbench/run") == run and labels.get("dtbench/study") == study:
            text = labels.get("dtbench/attempt", "")
            if text.isdigit() and int(text) > number and phase(job) not in (Phase.COMPLETE, Phase.FAILED):
                found.append(int(text))
    return max(found, default=None)
