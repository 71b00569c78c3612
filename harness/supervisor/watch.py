"""Watch one launcher until it exits, a signal comes, the deadline passes or a rank stalls.

For ranks that hang it collects Python stacks, native stacks and NCCL's flight recorder.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.contract.heartbeat import Heartbeat, read_heartbeat
from harness.contract.spec import RunSpec
from harness.supervisor import processes
from harness.supervisor.nodes.leader import Nodes
from harness.supervisor.processes import Signals
from harness.supervisor.progress import Progress, Stall

POLL_S = 0.5
STACKS_WAIT_S = 3.0
FLIGHT_RECORDER_WAIT_S = 10.0
PY_SPY_WAIT_S = 10.0
SETTLED_S = 0.3
"""A dump counts as complete when its file's size has not changed for this long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What the watcher itself knows about the end of a try."""

    cancelled: str | None
    """preemption, user_cancelled, deadline, stall, node (another node ended it); null: the launcher ended by itself."""
    launcher_exit_code: int
    wall_s: float
    progress: Progress
    stall: Stall | None


def watch(
    launcher: subprocess.Popen[bytes],
    spec: RunSpec,
    folder: Path,
    deadline_s: float,
    signals: Signals,
    tell: Callable[[Progress], None],
    nodes: Nodes | None = None,
) -> Ending:
    """Wait for the end of one try and leave no process of it behind. `deadline_s` is monotonic time."""
    started_s = time.monotonic()
    own_ranks = spec.platform.ranks_per_node
    progress = Progress(spec.platform.world_size, spec.protocol, started_s, own_ranks)
    stall = None
    descriptor = os.pidfd_open(launcher.pid)
    try:
        cancelled = None
        while not signals.wait(descriptor, min(POLL_S, deadline_s - time.monotonic())):
            if nodes:
                nodes.look(folder)
            look(folder, progress)
            tell(progress)
            now_s = time.monotonic()
            stall = progress.stalled(now_s)
            cancelled = signals.cancelled or ("deadline" if now_s >= deadline_s else "stall" if stall else None)
            if nodes and not cancelled and nodes.broken():
                cancelled = "node"
            if cancelled:
                break
        if nodes and cancelled:
            nodes.stop(cancelled)
        if cancelled in ("stall", "deadline"):
            dump_all(own_ranks, folder, {rank: beat for rank, beat in progress.last.items() if rank < own_ranks})
        # Hanging ranks get no SIGTERM, because in their logs it would look like a preemption.
        if cancelled not in ("stall", "node"):
            processes.end(launcher, processes.TERM_GRACE_S)
    finally:
        os.close(descriptor)
        processes.sweep(launcher)
    if nodes:
        nodes.settle(folder, cancelled)
    look(folder, progress)
    return Ending(
        cancelled=cancelled,
        launcher_exit_code=launcher.returncode,
        wall_s=time.monotonic() - started_s,
        progress=progress,
        stall=stall if cancelled == "stall" else None,
    )


def look(folder: Path, progress: Progress) -> None:
    """Pass every rank's current heartbeat to the tracker."""
    now_s = time.monotonic()
    for path in folder.glob("heartbeat-*.json"):
        beat = read_heartbeat(path)
        if beat is not None:
            progress.see(beat, now_s)


def dump_all(world_size: int, folder: Path, beats: dict[int, Heartbeat]) -> None:
    """Collect dumps within a bounded time; ranks that do not answer are left out."""
    pids = {rank: beat.pid for rank, beat in beats.items() if _alive(beat.pid)}
    recorders = [r for r in range(world_size) if _trigger_flight_recorder(folder / "flight-recorder", r)]
    spies = [_spy(pid, folder / f"py-spy-{rank}.txt") for rank, pid in pids.items()]
    for spy in spies:
        _finish(spy)
    for pid in pids.values():
        # The worker registered faulthandler on SIGUSR1 before its first heartbeat.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    _wait_settled((folder / f"stacks-{rank}.txt" for rank in pids), STACKS_WAIT_S)
    _wait_settled((folder / "flight-recorder" / f"rank_{r}" for r in recorders), FLIGHT_RECORDER_WAIT_S)
    for pipe in (folder / "flight-recorder").glob("*.pipe"):
        pipe.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _trigger_flight_recorder(folder: Path, rank: int) -> bool:
    try:
        descriptor = os.open(folder / f"rank_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    with contextlib.closing(os.fdopen(descriptor, "wb", buffering=0)) as pipe, contextlib.suppress(OSError):
        pipe.write(b"1\n")
    return True


def _spy(pid: int, path: Path) -> subprocess.Popen[bytes] | None:
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        return None
    with open(path, "wb") as output:
        return subprocess.Popen(
            [program, "dump", "--pid", str(pid)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


def _finish(spy: subprocess.Popen[bytes] | None) -> None:
    if spy is None:
        return
    try:
        spy.wait(PY_SPY_WAIT_S)
    except subprocess.TimeoutExpired:
        spy.kill()
        spy.wait()


def _wait_settled(paths: Iterable[Path], timeout_s: float) -> None:
    end_at = time.monotonic() + timeout_s
    sizes: dict[Path, int] = dict.fromkeys(paths, -1)
    unsettled = set(sizes)
    while unsettled and time.monotonic() < end_at:
        time.sleep(SETTLED_S)
        for path in list(unsettled):
            size = path.stat().st_size if path.exists() else 0
            if size > 0 and size == sizes[path]:
                unsettled.discard(path)
            sizes[path] = size
