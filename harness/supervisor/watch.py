"""Follow one launcher from start to end: its exit, a signal, the deadline or a stall."""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.contract.heartbeat import read_heartbeat
from harness.contract.spec import RunSpec
from harness.supervisor import processes
from harness.supervisor.dumps import dump_all
from harness.supervisor.progress import Progress, Stall
from harness.supervisor.signals import Signals

POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What the watcher itself knows about the end of a try."""

    cancelled: str | None
    """preemption, user_cancelled, deadline, stall; null: the launcher ended by itself."""
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
) -> Ending:
    """Wait for the end of one try and leave no process of it behind. `deadline_s` is monotonic time."""
    started_s = time.monotonic()
    progress = Progress(spec.platform.world_size, spec.protocol, started_s)
    stall = None
    descriptor = os.pidfd_open(launcher.pid)
    try:
        cancelled = None
        while not signals.wait(descriptor, min(POLL_S, deadline_s - time.monotonic())):
            look(folder, progress)
            tell(progress)
            now_s = time.monotonic()
            stall = progress.stalled(now_s)
            cancelled = signals.cancelled or ("deadline" if now_s >= deadline_s else "stall" if stall else None)
            if cancelled:
                break
        if cancelled in ("stall", "deadline"):
            dump_all(spec.platform.world_size, folder, progress.last)
        # Hanging ranks get no SIGTERM: what they and the launcher say of it would read like a preemption.
        if cancelled != "stall":
            processes.end(launcher, processes.TERM_GRACE_S)
    finally:
        os.close(descriptor)
        processes.sweep(launcher)
    look(folder, progress)
    return Ending(
        cancelled=cancelled,
        launcher_exit_code=launcher.returncode,
        wall_s=time.monotonic() - started_s,
        progress=progress,
        stall=stall if cancelled == "stall" else None,
    )


def look(folder: Path, progress: Progress) -> None:
    """Show the tracker every rank's heartbeat as it is now."""
    now_s = time.monotonic()
    for path in folder.glob("heartbeat-*.json"):
        beat = read_heartbeat(path)
        if beat is not None:
            progress.see(beat, now_s)
