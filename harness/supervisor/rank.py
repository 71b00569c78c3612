"""Wrap one rank: own log, own exit file, no orphan: `python -m harness.supervisor.rank TRY_FOLDER COMMAND...`.

The launcher starts one of these per rank. It sends the worker's output to rank-<R>.log, passes
signals on, writes exit-<R>.json and then ends exactly as the worker did, so that the launcher reports
what it would have reported without it. Options in front of TRY_FOLDER are the launcher's own
(the deepspeed launcher injects `--local_rank=N`) and go to the worker. Only the standard library, so
that it starts in milliseconds.
"""

import itertools
import json
import os
import resource
import signal
import sys
import time

from harness.process import die_with_parent

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
AWAITED = (*FORWARDED, signal.SIGCHLD)
FAILED_EXEC = 127


def main() -> None:
    launcher_pid = os.getppid()
    supervisor_pid = int(os.environ["HARNESS_SUPERVISOR_PID"])
    if launcher_pid in (1, supervisor_pid):
        sys.exit("the launcher ended before its rank began")
    die_with_parent(launcher_pid)
    folder, command = _arguments(sys.argv[1:])
    rank = int(os.environ["RANK"])
    # A core file of a training process is as large as its memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    status = _follow(_start(f"{folder}/rank-{rank}.log", command))
    _report(folder, rank, status)
    _end_alike(status)


def _follow(child: int) -> int:
    # sigwait blocks here and no handler runs, so no signal races waitpid.
    while True:
        number = signal.sigwait(AWAITED)
        if number != signal.SIGCHLD:
            os.kill(child, number)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status


def _arguments(given: list[str]) -> tuple[str, list[str]]:
    injected = list(itertools.takewhile(lambda word: word.startswith("--"), given))
    folder, *command = given[len(injected) :]
    return folder, [*command, *injected]


def _start(log: str, command: list[str]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        die_with_parent(parent)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error}\n".encode())
    finally:
        os._exit(FAILED_EXEC)


def _report(folder: str, rank: int, status: int) -> None:
    died = os.WIFSIGNALED(status)
    fields = {
        "rank": rank,
        "exit_code": None if died else os.WEXITSTATUS(status),
        "signal": signal.Signals(os.WTERMSIG(status)).name if died else None,
        "at_s": time.time(),
    }
    path = f"{folder}/exit-{rank}.json"
    try:
        # Not atomic: the supervisor reads it after this process has ended and ignores half a file.
        with open(path, "w") as file:
            json.dump(fields, file)
    except OSError as error:
        print(f"{path}: not written: {error}", file=sys.stderr)


def _end_alike(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
