"""Real supervisors as child processes, and a way to see whether anything of them is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.contract import exitcodes
from harness.contract.heartbeat import Heartbeat, read_heartbeat
from harness.contract.record import Record, read_record
from harness.contract.spec import RunSpec
from tests.engines.specs import make_spec

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0
MARK = "HARNESS_TEST_MARK"


def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll until the condition holds; fail saying what did not happen."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {timeout_s:.0f} s in vain: {what}"
        time.sleep(0.05)


class Supervisor:
    """One `python -m harness ...` process."""

    def __init__(self, folder: Path, spec: RunSpec | None) -> None:
        self.spec_path, self.out = folder / "spec.json", folder / "out"
        if spec is not None:
            self.spec_path.write_text(json.dumps(spec.to_json()))
        self._mark = uuid.uuid4().hex
        self.process: subprocess.Popen[str] | None = None
        self.stdout, self.stderr = "", ""

    def start(self, *options: str, program: list[str] | None = None, **environment: str) -> "Supervisor":
        """Start `harness run` (or another program) on the spec."""
        command = program or ["-m", "harness", "run"]
        self.process = subprocess.Popen(
            [sys.executable, *command, str(self.spec_path), str(self.out), *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment | {MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit status; what it said is kept."""
        assert self.process is not None
        self.stdout, self.stderr = self.process.communicate(timeout=timeout_s)
        return self.process.returncode

    def run(self, *options: str, **environment: str) -> int:
        """Start it and wait for its end."""
        return self.start(*options, **environment).wait()

    @property
    def record(self) -> Record:
        """The record it left."""
        return read_record(self.out / "record.json")

    def beat(self, rank: int) -> Heartbeat | None:
        """The rank's last heartbeat in the first try."""
        return read_heartbeat(self.out / "try-1" / f"heartbeat-{rank}.json")

    def wait_for_step(self, step: int) -> None:
        """Wait until every rank has begun that step."""

        def reached() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, "the supervisor ended too early"
            beats = [self.beat(rank) for rank in (0, 1)]
            return all(b is not None and b.step >= step for b in beats)

        until(reached, f"step {step} on both ranks")

    def leftovers(self) -> list[psutil.Process]:
        """Processes of this supervisor, itself included, that are alive now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def assert_nothing_left(self, timeout_s: float = 5.0) -> None:
        """No process that it started, directly or not, survives."""
        until(lambda: not self.leftovers(), f"the end of {[p.pid for p in self.leftovers()]}", timeout_s)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Supervisor:
    """One run that went well, for all tests that only read what such a run leaves behind."""
    supervisor = Supervisor(tmp_path_factory.mktemp("finished"), make_spec("ddp", protocol__timed_steps=4))
    assert supervisor.run() == exitcodes.RECORD_DELIVERED, supervisor.stderr
    return supervisor


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    """Make supervisors; all that they started is gone after the test, whatever happened in it."""
    made: list[Supervisor] = []

    def make(spec: RunSpec | None, name: str = "run") -> Supervisor:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        made.append(Supervisor(folder, spec))
        return made[-1]

    yield make
    for supervisor in made:
        for process in supervisor.leftovers():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)
