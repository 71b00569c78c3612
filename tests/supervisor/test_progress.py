"""When a rank counts as stalled: bounds by phase, from the run's own step times."""

import pytest

from harness.contract.heartbeat import Heartbeat
from harness.contract.spec import Protocol
from harness.supervisor.progress import AFTER_LAST_STEP_S, Progress

PROTOCOL = Protocol(warmup_steps=2, timed_steps=5, stall_factor=20.0, stall_floor_s=60.0, startup_stall_s=600.0)


def beat(rank: int, step: int, phase: str, at_s: float, allocated_bytes: int = 0) -> Heartbeat:
    return Heartbeat(rank=rank, pid=1, step=step, phase=phase, at_s=at_s, allocated_bytes=allocated_bytes)


def after(*beats: Heartbeat) -> Progress:
    progress = Progress(2, PROTOCOL, started_s=0.0)
    for b in beats:
        progress.see(b, b.at_s)
    return progress


def test_the_first_step_has_the_start_bound() -> None:
    silent = after()
    assert silent.stalled(600.0) is None
    stall = silent.stalled(601.0)
    assert stall is not None
    assert stall.step is None
    assert "before its first heartbeat" in stall.sentence()
    assert after(beat(0, 0, "forward", 1.0), beat(1, 0, "forward", 1.0)).stalled(600.0) is None


@pytest.mark.parametrize(("step_time_s", "bound_s"), [(1.0, 60.0), (5.0, 100.0)])
def test_the_bound_follows_the_median_step(step_time_s: float, bound_s: float) -> None:
    steps = [beat(rank, step, "forward", step * step_time_s) for step in range(5) for rank in (0, 1)]
    progress = after(*steps)
    assert progress.bound_s(0) == bound_s
    last_s = 4 * step_time_s
    assert progress.stalled(last_s + bound_s) is None
    assert progress.stalled(last_s + bound_s + 1) is not None


def test_one_slow_step_does_not_stretch_the_bound() -> None:
    times_s = [0.0, 1.0, 2.0, 62.0, 63.0, 64.0]
    assert after(*(beat(0, step, "forward", at_s) for step, at_s in enumerate(times_s))).bound_s(0) == 60.0


def test_the_first_silent_rank_is_named() -> None:
    steps = [beat(rank, step, "forward", float(step)) for step in range(5) for rank in (0, 1)]
    stall = after(*steps, beat(0, 4, "backward", 5.0)).stalled(100.0)
    assert stall is not None
    assert (stall.rank, stall.step, stall.phase, stall.silent_s) == (1, 4, "forward", 96.0)


def test_a_heartbeat_seen_twice_is_no_progress() -> None:
    progress = after(*(beat(rank, 3, "forward", 10.0) for rank in (0, 1)))
    progress.see(beat(0, 3, "forward", 10.0), 70.0)
    progress.see(beat(1, 3, "backward", 69.0), 70.0)
    stall = progress.stalled(75.0)
    assert stall is not None
    assert stall.rank == 0


def test_a_finished_rank_waits_within_a_bound() -> None:
    done = after(beat(0, 7, "done", 10.0), beat(1, 7, "collect", 100.0))
    assert done.stalled(100.0 + AFTER_LAST_STEP_S) is None
    stall = done.stalled(101.0 + AFTER_LAST_STEP_S)
    assert stall is not None
    assert stall.rank == 1
    both = after(beat(0, 7, "done", 10.0), beat(1, 7, "done", 10.0))
    assert both.stalled(11.0 + AFTER_LAST_STEP_S) is not None


def test_heartbeats_give_timed_window_and_peak() -> None:
    progress = after(
        beat(0, 1, "step", 5.0, 10),
        beat(0, 2, "forward", 6.0, 30),
        beat(1, 4, "step", 9.0, 20),
        beat(0, 7, "collect", 12.0, 30),
    )
    assert progress.window_s == (6.0, 9.0)
    assert progress.peak_allocated_bytes == 30
    assert progress.step == 7
