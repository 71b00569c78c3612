"""The second try: when it is given, and that it really is one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contract import exitcodes
from harness.contract.outcome import REMEDIES, Diagnosis, Evidence
from harness.supervisor.attempt import remedy_for
from tests.engines.specs import make_spec
from tests.supervisor.conftest import Supervisor

SPEC = make_spec("ddp")
CURE = REMEDIES["expandable-segments"]
STANDIN = Path(__file__).with_name("fragmented.py")


@pytest.mark.parametrize(
    ("outcome", "runner_up", "expected"),
    [
        ("cuda_oom_fragmentation", None, CURE),
        ("wedge_masking_oom", None, CURE),
        ("collective_wedge", "wedge_masking_oom", CURE),
        ("collective_wedge", None, None),
        ("collective_wedge", "python_exception", None),
        ("cuda_oom", None, None),
        ("ok", None, None),
        ("preemption", None, None),
    ],
)
def test_only_a_known_cure_gets_a_second_try(outcome: str, runner_up: str | None, expected: object) -> None:
    diagnosis = Diagnosis(outcome=outcome, confidence="high", runner_up=runner_up)
    assert remedy_for(diagnosis, SPEC, {}) == expected


@pytest.mark.parametrize(
    ("asked", "free", "allocated", "unallocated", "expected"),
    [
        # Seen on H200s under a cap of 31 and of 78 GiB: with the cure the same runs fitted.
        ("1.16 GiB", "681.44 MiB", "29.45 GiB", "905.76 MiB", CURE),
        ("4.64 GiB", "3.15 GiB", "71.92 GiB", "2.93 GiB", CURE),
        # Seen under a cap of 24 GiB: no order of the blocks makes room.
        ("1.16 GiB", "665.96 MiB", "23.25 GiB", "102.04 MiB", None),
    ],
)
def test_fragmented_memory_is_worth_a_second_try(
    asked: str, free: str, allocated: str, unallocated: str, expected: object
) -> None:
    text = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of "
        f"139.80 GiB of which {free} is free. Of the allocated memory {allocated} is allocated by PyTorch, and "
        f"{unallocated} is reserved by PyTorch but unallocated."
    )
    evidence = (
        Evidence(file="rank-0.log", line=9, text=text),
        Evidence(file="exit-0.json", line=0, text="exit code 1"),
    )
    diagnosis = Diagnosis(outcome="cuda_oom", confidence="high", evidence=evidence)
    assert remedy_for(diagnosis, SPEC, {}) == expected


def test_a_remedy_off_or_active_is_not_tried() -> None:
    diagnosis = Diagnosis(outcome="cuda_oom_fragmentation", confidence="high")
    assert remedy_for(diagnosis, make_spec("ddp", protocol__remedies="off"), {}) is None
    assert remedy_for(diagnosis, SPEC, dict(CURE.environment)) is None


def test_the_same_attempt_cures_a_fragmented_run(supervise: Callable[..., Supervisor]) -> None:
    # A CPU cannot fragment: a stand-in for the worker dies the way PyTorch words it, until the cure is in force.
    run = supervise(make_spec("ddp", protocol__warmup_steps=0, protocol__timed_steps=2)).start(program=[str(STANDIN)])
    assert run.wait() == exitcodes.RECORD_DELIVERED, run.stderr
    record = run.record
    assert record.outcome == "ok", record.diagnosis
    assert record.dagger
    first, second = record.tries
    assert (first.remedy, first.diagnosis.outcome) == (None, "cuda_oom_fragmentation")
    assert (second.remedy, second.environment) == (CURE.name, CURE.environment)
    assert {"try-1/rank-0.log", "try-2/rank-0.log"} <= {f.path for f in record.files}
    assert record.environment is not None
    assert record.environment.variables["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "trying once more with remedy expandable-segments" in run.stdout
