"""The second try: when it is given, and that it really is one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contract import exitcodes
from harness.contract.diagnosis import Diagnosis
from harness.contract.outcome import REMEDIES
from harness.supervisor.remedy import remedy_for
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


def test_a_cure_that_is_switched_off_or_in_force_is_not_tried() -> None:
    diagnosis = Diagnosis(outcome="cuda_oom_fragmentation", confidence="high")
    assert remedy_for(diagnosis, make_spec("ddp", protocol__remedies="off"), {}) is None
    assert remedy_for(diagnosis, SPEC, dict(CURE.environment)) is None


def test_a_fragmented_run_is_cured_in_the_same_attempt(supervise: Callable[..., Supervisor]) -> None:
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
