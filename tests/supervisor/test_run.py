"""`harness run` with real ranks: what it leaves behind, whatever happens to them."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contract import exitcodes
from harness.supervisor.folder import finished, list_files
from harness.supervisor.processes import SCHEDULED
from tests.engines.specs import make_spec
from tests.supervisor.conftest import Supervisor

Make = Callable[..., Supervisor]
LONG = {"protocol__timed_steps": 100_000, "protocol__warmup_steps": 2}
"""A run that ends only when somebody ends it."""


def test_a_run_leaves_a_record_whose_files_hold(finished_run: Supervisor) -> None:
    record = finished_run.record
    assert record.outcome == "ok", record.diagnosis
    assert record.files == list_files(finished_run.out)
    assert not list(finished_run.out.glob(".*"))
    assert [(e.exit_code, e.signal) for e in record.tries[0].exits] == [(0, None), (0, None)]
    assert "ok:" in finished_run.stdout
    assert "tok/s" in finished_run.stdout


def test_a_run_is_measured_over_all_ranks(finished_run: Supervisor) -> None:
    spec, measured = finished_run.record.spec, finished_run.record.measured
    assert measured is not None
    assert measured.tokens_per_step == 2 * 64
    assert len(measured.step_times_s) == 4
    assert measured.step_time_s is not None
    assert measured.tokens_per_s == pytest.approx(2 * 64 / measured.step_time_s)
    assert len(measured.loss) == spec.total_steps
    assert len(measured.memory_by_rank) == 2
    assert measured.mfu is None, "no peak is known for a CPU"


def test_a_finished_run_missing_files_stays_finished(supervise: Make, finished_run: Supervisor, tmp_path: Path) -> None:
    spec = finished_run.record.spec
    again = supervise(spec)
    shutil.copytree(finished_run.out, again.out)
    written = (again.out / "record.json").stat().st_mtime_ns
    assert again.run() == exitcodes.RECORD_DELIVERED
    assert "already finished" in again.stdout
    assert (again.out / "record.json").stat().st_mtime_ns == written
    assert "gone or changed" not in again.stdout
    (again.out / "try-1" / "rank-0.log").write_text("torn")
    (again.out / "try-1" / "rank-1.log").unlink()
    assert again.run() == exitcodes.RECORD_DELIVERED
    assert "gone or changed: try-1/rank-0.log, try-1/rank-1.log; its numbers are in the record" in again.stdout
    assert (again.out / "record.json").stat().st_mtime_ns == written
    assert (again.out / "try-1" / "launcher.log").exists()


def test_another_specs_finished_run_is_never_overwritten(supervise: Make, finished_run: Supervisor) -> None:
    other = supervise(make_spec("ddp", protocol__timed_steps=3))
    other.out = finished_run.out
    assert other.run() == exitcodes.CONFIG
    assert "record of spec" in other.stderr
    assert other.record.spec.protocol.timed_steps == 4


def test_the_worker_takes_deepspeeds_local_rank(supervise: Make) -> None:
    run = supervise(make_spec("zero-1", protocol__timed_steps=2))
    assert run.run() == exitcodes.RECORD_DELIVERED, run.stderr
    assert run.record.outcome == "ok", run.record.diagnosis
    assert "--local_rank=1" in (run.out / "try-1" / "launcher.log").read_text()


@pytest.mark.parametrize(
    ("number", "where", "outcome"),
    [
        (signal.SIGINT, None, "user_cancelled"),
        (signal.SIGTERM, None, "user_cancelled"),
        (signal.SIGTERM, "HARNESS_POD_NAME", "preemption"),
    ],
    ids=["INT", "TERM", "TERM-in-a-pod"],
)
def test_a_signalled_run_leaves_a_record(
    supervise: Make, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, where: str | None, outcome: str
) -> None:
    for name in SCHEDULED:  # the suite itself may run in a pod
        monkeypatch.delenv(name, raising=False)
    run = supervise(make_spec("ddp", **LONG)).start(**({where: "here"} if where else {}))
    run.wait_for_step(3)
    assert run.process is not None
    run.process.send_signal(number)
    assert run.wait(timeout_s=20) == exitcodes.RECORD_DELIVERED, run.stderr
    run.assert_nothing_left()
    record = run.record
    assert record.outcome == outcome
    assert record.measured is None
    assert record.tries[0].last_step is not None
    assert record.tries[0].last_step >= 3
    assert finished(run.out, record.spec) == record


def test_a_killed_ranks_signal_is_recorded(supervise: Make) -> None:
    run = supervise(make_spec("fsdp2-reshard", **LONG)).start()
    run.wait_for_step(2)
    victim = run.beat(1)
    assert victim is not None
    os.kill(victim.pid, signal.SIGKILL)
    assert run.wait() == exitcodes.RECORD_DELIVERED, run.stderr
    run.assert_nothing_left()
    exit_ = run.record.tries[0].exits[1]
    assert (exit_.exit_code, exit_.signal) == (None, "SIGKILL")
    assert run.record.outcome != "ok"
    assert run.record.diagnosis.culprit_rank == 1


@pytest.mark.parametrize("config", ["ddp", pytest.param("zero-1", marks=pytest.mark.slow)])
def test_a_killed_supervisor_leaves_no_process(supervise: Make, config: str) -> None:
    run = supervise(make_spec(config, protocol__timed_steps=15)).start()
    run.wait_for_step(2)
    assert run.process is not None
    run.process.kill()
    run.process.communicate()
    run.assert_nothing_left()
    assert not (run.out / "record.json").exists()
    (run.out / "try-1" / "half").write_text("left over")

    again = supervise(make_spec(config, protocol__timed_steps=15))
    assert again.run() == exitcodes.RECORD_DELIVERED, again.stderr
    assert again.record.outcome == "ok"
    assert not (again.out / "try-1" / "half").exists()


@pytest.mark.slow
def test_the_deadline_ends_a_run(supervise: Make) -> None:
    run = supervise(make_spec("ddp", protocol__deadline_s=12.0, **LONG))
    assert run.run() == exitcodes.RECORD_DELIVERED, run.stderr
    run.assert_nothing_left()
    assert run.record.outcome == "deadline"
    assert run.record.wall_s is not None
    assert 12 <= run.record.wall_s < 60


def test_a_silent_rank_is_found_dumped_and_ended(supervise: Make) -> None:
    spec = make_spec("ddp", protocol__stall_floor_s=4.0, protocol__stall_factor=3.0, **LONG)
    run = supervise(spec).start()
    run.wait_for_step(4)
    victim = run.beat(1)
    assert victim is not None
    os.kill(victim.pid, signal.SIGSTOP)
    assert run.wait() == exitcodes.RECORD_DELIVERED, run.stderr
    run.assert_nothing_left()
    record = run.record
    assert record.outcome == "collective_wedge", record.diagnosis
    assert any("made no progress" in note for note in record.notes)
    stack = (run.out / "try-1" / "stacks-0.txt").read_text()
    assert "backward" in stack or "step" in stack


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"spec.json:1:2: not JSON"),
        (json.dumps({"spec_version": 1}), r"missing"),
        (None, r"cannot be read"),
    ],
)
def test_a_bad_spec_starts_nothing(supervise: Make, text: str | None, words: str) -> None:
    run = supervise(None)
    if text is not None:
        run.spec_path.write_text(text)
    assert run.run() == exitcodes.CONFIG
    assert words in run.stderr
    assert not run.out.exists()


def test_an_out_that_is_no_folder_is_refused(supervise: Make) -> None:
    run = supervise(make_spec("ddp"))
    run.out.write_text("a file")
    assert run.run() == exitcodes.INTERNAL
    assert run.stderr.count("\n") == 1
    assert "cannot be used as a folder" in run.stderr


def test_a_secret_in_a_spec_is_refused(supervise: Make) -> None:
    run = supervise(make_spec("ddp", environment={"HF_TOKEN": "hf_" + "x" * 30}))
    assert run.run() == exitcodes.CONFIG
    assert "environment.HF_TOKEN: looks like a secret" in run.stderr
    assert "xxx" not in run.stderr
    assert not run.out.exists()


@pytest.mark.slow
def test_a_second_supervisor_takes_the_firsts_record(supervise: Make) -> None:
    spec = make_spec("ddp", protocol__timed_steps=20)
    first = supervise(spec).start()
    first.wait_for_step(1)
    second = supervise(spec).start()
    assert second.wait() == exitcodes.RECORD_DELIVERED, second.stderr
    assert first.wait() == exitcodes.RECORD_DELIVERED, first.stderr
    assert "another supervisor is working" in second.stdout
    assert "already finished: ok" in second.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_still_gets_a_record(supervise: Make, small_disk: Path) -> None:
    run = supervise(make_spec("ddp", **LONG))
    run.out = small_disk / "out"
    run.start()
    run.wait_for_step(2)
    fill(small_disk)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == exitcodes.RECORD_DELIVERED, run.stderr
    assert run.record.outcome == "user_cancelled"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_record_that_no_disk_takes_is_printed(supervise: Make, small_disk: Path) -> None:
    run = supervise(make_spec("ddp", **LONG))
    run.out = small_disk / "out"
    run.start()
    run.wait_for_step(2)
    (run.out / ".reserve").unlink()
    fill(small_disk)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == exitcodes.DELIVERY
    assert "No space left" in run.stderr
    line = next(line for line in run.stdout.splitlines() if line.startswith("HARNESS-RECORD "))
    assert json.loads(line.removeprefix("HARNESS-RECORD "))["outcome"] == "user_cancelled"
    assert not (run.out / "record.json").exists()


def fill(disk: Path) -> None:
    """Write until nothing more fits."""
    with open(disk / "ballast", "wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            while True:
                try:
                    file.write(b"x" * size)
                except OSError:
                    break
