"""The tuned arm: trials, the choice between them, and the run that the choice is measured in."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harness.contract import exitcodes
from harness.contract.errors import SpecError
from harness.contract.heartbeat import read_heartbeat
from harness.contract.measured import Measured
from harness.contract.outcome import Diagnosis
from harness.contract.record import RECORD_VERSION, Record, read_record
from harness.contract.spec import RunSpec, read_spec
from harness.search.tuned import Choice, trial_spec, tune
from harness.supervisor.folder import finished
from tests.engines.specs import make_spec
from tests.supervisor.conftest import Supervisor, until

TRIALS: list[dict[str, Any]] = [{}, {"bucket_cap_mb": 1.0}, {"bucket_cap_mb": 100.0}]
SPEC = make_spec("ddp", protocol__trials=TRIALS, protocol__trial_steps=4, protocol__profiled_steps=2)


def record_of(spec: RunSpec, outcome: str, tokens_per_s: float | None) -> Record:
    return Record(
        record_version=RECORD_VERSION,
        source=None,
        spec=spec,
        spec_hash=spec.hash(),
        outcome=outcome,
        diagnosis=Diagnosis(outcome=outcome, confidence="high", sentence="what happened"),
        started_at=None,
        ended_at=None,
        wall_s=2.0,
        tries=(),
        measured=Measured(tokens_per_s=tokens_per_s, step_time_s=0.1) if tokens_per_s else None,
        resolved=None,
        environment=None,
        files=(),
    )


def choose(speeds: dict[float, float | None], spec: RunSpec = SPEC, left_s: float = 1000.0) -> Choice:
    """Search on a machine whose speed depends on the bucket; None: that trial dies."""

    def run(trial: RunSpec, place: Path, until_s: float) -> Record:
        speed = speeds[trial.engine.settings["bucket_cap_mb"]]
        return record_of(trial, "ok" if speed else "cuda_oom", speed)

    return tune(spec, Path("out"), run, time.monotonic() + left_s, lambda: False)


def test_the_fastest_trial_is_kept() -> None:
    choice = choose({25.0: 100.0, 1.0: 90.0, 100.0: 120.0})
    assert choice.spec.engine.settings["bucket_cap_mb"] == 100.0
    assert choice.spec.protocol == structs.replace(SPEC.protocol, trials=())
    assert [(t.settings, t.tokens_per_s, t.kept) for t in choice.trials] == [
        ({}, 100.0, False),
        ({"bucket_cap_mb": 1.0}, 90.0, False),
        ({"bucket_cap_mb": 100.0}, 120.0, True),
    ]
    assert "kept bucket_cap_mb=100.0" in choice.note


def test_a_trial_that_dies_is_data() -> None:
    choice = choose({25.0: 100.0, 1.0: None, 100.0: 90.0})
    assert choice.spec.engine.settings["bucket_cap_mb"] == 25.0
    dead = choice.trials[1]
    assert (dead.outcome, dead.sentence, dead.tokens_per_s) == ("cuda_oom", "what happened", None)


def test_when_all_trials_fail_settings_stay() -> None:
    choice = choose({25.0: None, 1.0: None, 100.0: None})
    assert choice.spec.engine == SPEC.engine
    assert not any(t.kept for t in choice.trials)
    assert "no trial can be kept" in choice.note


def test_a_compilation_that_gave_up_never_wins() -> None:
    def run(trial: RunSpec, place: Path, until_s: float) -> Record:
        record = record_of(trial, "ok", trial.engine.settings["bucket_cap_mb"])
        share = 8 / 36 if trial.engine.settings["bucket_cap_mb"] == 100.0 else 1.0
        assert record.measured is not None
        return structs.replace(record, measured=structs.replace(record.measured, compiled_share=share))

    choice = tune(SPEC, Path("out"), run, time.monotonic() + 100, lambda: False)
    assert [t.kept for t in choice.trials] == [True, False, False]
    assert choice.spec.engine.settings["bucket_cap_mb"] == 25.0
    assert "bucket_cap_mb=100.0: torch compiled 22% of the blocks" in choice.note


def test_trials_share_time_equally_beside_the_run() -> None:
    shares: list[float] = []

    def run(trial: RunSpec, place: Path, until_s: float) -> Record:
        shares.append(until_s - time.monotonic())
        return record_of(trial, "ok", 1.0)

    tune(SPEC, Path("out"), run, time.monotonic() + 400.0, lambda: False)
    assert shares == pytest.approx([100.0, 400 / 3, 200.0], abs=1.0), "unused time goes to those that follow"


def test_a_signal_or_the_deadline_stops_trials() -> None:
    def run(trial: RunSpec, place: Path, until_s: float) -> Record:
        raise AssertionError("a trial was started")

    assert tune(SPEC, Path("out"), run, time.monotonic() + 400.0, lambda: True).trials == []
    assert tune(SPEC, Path("out"), run, time.monotonic(), lambda: False).trials == []


def test_a_short_trial_keeps_the_warm_up() -> None:
    trial = trial_spec(SPEC, {"bucket_cap_mb": 1.0})
    assert (trial.protocol.warmup_steps, trial.protocol.timed_steps) == (SPEC.protocol.warmup_steps, 4)
    assert (trial.protocol.profiled_steps, trial.protocol.remedies, trial.protocol.trials) == (0, "off", ())


def test_an_impossible_setting_is_found_before_the_run() -> None:
    with pytest.raises(SpecError, match=r"protocol.trials\[1\].offload_param: needs stage 3, found stage 2"):
        make_spec("zero-3-offload", protocol__trials=[{}, {"stage": 2}])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tuned_run_uses_its_trials_choice(supervise: Callable[..., Supervisor]) -> None:
    spec = make_spec(
        "ddp",
        identity__arm="tuned",
        protocol__warmup_steps=1,
        protocol__timed_steps=4,
        protocol__trial_steps=2,
        protocol__trials=[{"gradient_as_bucket_view": False}, {"bucket_cap_mb": 1e300}],
    )
    tuned = supervise(spec)
    assert tuned.start().wait(timeout_s=500) == exitcodes.RECORD_DELIVERED, tuned.stderr
    record = tuned.record
    assert record.outcome == "ok"
    assert record.spec == spec, "the spec stays as given"
    assert record.measured is not None
    assert record.measured.search is not None
    kept, dead = record.measured.search
    assert (kept.outcome, kept.kept) == ("ok", True)
    assert dead.outcome not in ("ok", "unknown"), "DDP cannot hold that number"
    assert dead.tokens_per_s is None
    assert len(record.measured.step_times_s) == 4
    assert record.resolved is not None
    assert record.resolved["gradient_as_bucket_view"] is False
    assert any("kept gradient_as_bucket_view=false" in note for note in record.notes)
    assert read_spec(tuned.out / "chosen.json").engine.settings["gradient_as_bucket_view"] is False
    assert len(read_record(tuned.out / "trial-1" / "record.json").spec.protocol.trials) == 0
    assert "trial 2/2" in tuned.stdout
    assert finished(tuned.out, spec) == record, "the trials' files are in the list and hold"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_in_a_trial_leaves_a_record(supervise: Callable[..., Supervisor]) -> None:
    spec = make_spec("ddp", identity__arm="tuned", protocol__trial_steps=100_000, protocol__trials=[{}, {}, {}])
    tuned = supervise(spec).start()
    beats = tuned.out / "trial-1" / "try-1"
    until(
        lambda: all((b := read_heartbeat(beats / f"heartbeat-{r}.json")) and b.step > 1 for r in (0, 1)), "steps", 500
    )
    assert tuned.process is not None
    tuned.process.send_signal(signal.SIGINT)
    assert tuned.wait() == exitcodes.RECORD_DELIVERED
    tuned.assert_nothing_left()
    record = tuned.record
    assert record.outcome == "user_cancelled"
    assert record.measured is not None
    assert [t.outcome for t in record.measured.search or ()] == ["user_cancelled"], "no other trial was begun"
    assert record.measured.tokens_per_s is None
