"""How launchers, shells and schedulers report a process's end."""

import re
import signal as signals

from harness.diagnosis.findings import Exit, Findings

_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: \d+\)")
_TABLE_RANK = re.compile(r"^\s*rank\s+: (?P<rank>\d+) \(local_rank: \d+\)")
_TABLE_CODE = re.compile(r"^\s*exitcode\s+: (?P<code>-?\d+) \(pid: \d+\)")
_DEEPSPEED = re.compile(r"exits with return code = (?P<code>-?\d+)")
_LOCAL_RANK = re.compile(r"--local[_-]rank=(?P<rank>\d+)")
_SRUN = re.compile(
    r"srun: error: \S+: tasks? (?P<rank>\d+)[\d,-]*: (?P<what>Killed|Terminated|Segmentation fault|Aborted|Bus error|Exited with exit code (?P<code>\d+))"
)
_MPI = re.compile(r"rank (?P<rank>\d+) with PID \d+ on node .* exited on signal (?P<signal>\d+)")
_SHELL = re.compile(
    r"(?:^|: )(?:line \d+: +)?(?:\d+ )?(?P<what>Killed|Terminated|Segmentation fault|Aborted|Bus error|Illegal instruction)(?: +\(core dumped\)| {2,}\S|$)"
)
_CODE = re.compile(r"(?i)(?:exit(?:ed)?(?: with)?(?: exit)? (?:code|status)|Exit Code)[:= ]+(?P<code>-?\d{1,3})\b")
_CALLED = re.compile(r"returned non-zero exit status (?P<code>\d+)|died with <Signals\.\w+: (?P<signal>\d+)>")
_SPAWN = re.compile(r"process (?P<rank>\d+) terminated with (?:signal (?P<name>SIG\w+)|exit code (?P<code>\d+))")
_NAMES = {
    "Killed": signals.SIGKILL, "Terminated": signals.SIGTERM, "Segmentation fault": signals.SIGSEGV,
    "Aborted": signals.SIGABRT, "Bus error": signals.SIGBUS, "Illegal instruction": signals.SIGILL,
}  # fmt: skip


class ExitReader:
    """State of one file: the launcher's failure table names a rank in one row and its code in the next."""

    def __init__(self, findings: Findings, file: str) -> None:
        self._findings, self._file = findings, file
        self._row_rank: int | None = None
        self._root = False

    def feed(self, number: int, text: str) -> None:
        """Take one normalised line."""
        if "exits successfully" in text:
            self._findings.finished += 1
        elif "spawned with command" in text:
            self._findings.spawned += 1
        elif "Root Cause (first observed failure)" in text:
            self._root = True
        elif match := _TABLE_RANK.match(text):
            self._row_rank = int(match["rank"])
            self._findings.ranks.add(self._row_rank)
        elif match := _TABLE_CODE.match(text):
            self._add(self._row_rank, int(match["code"]), number, text, first=self._root)
            self._root = False
        elif found := self._one_line(text):
            self._add(*found, number, text)
        if "Started container" in text or re.match(r"^\s*Started:\s", text):
            self._findings.started_pod = True

    def _one_line(self, text: str) -> tuple[int | None, int] | None:
        if match := _FAILED.search(text):
            return int(match["rank"]), int(match["code"])
        if match := _DEEPSPEED.search(text):
            rank = _LOCAL_RANK.search(text)
            return (int(rank["rank"]) if rank else None), int(match["code"])
        if match := _SRUN.search(text):
            code = int(match["code"]) if match["code"] else -_NAMES[match["what"]]
            return int(match["rank"]), code
        if match := _MPI.search(text):
            return int(match["rank"]), -int(match["signal"])
        if match := _CALLED.search(text):
            return None, -int(match["signal"]) if match["signal"] else int(match["code"])
        if match := _SPAWN.search(text):
            code = int(match["code"]) if match["code"] else -getattr(signals, match["name"], 0)
            return int(match["rank"]), code
        if match := _SHELL.search(text):
            return None, -_NAMES[match["what"]]
        if match := _CODE.search(text):
            return None, normal_code(int(match["code"]))
        return None

    def _add(self, rank: int | None, code: int, number: int, text: str, first: bool = False) -> None:
        self._findings.exits.append(
            Exit(rank=rank, code=code, file=self._file, line=number, text=text.strip()[:500], first=first)
        )


def normal_code(code: int) -> int:
    """A shell's 128+n and deepspeed's 256-n as -n; other codes as they are."""
    if 128 < code < 128 + 65:
        return 128 - code
    if 256 - 65 < code < 256 and code != 255:
        return code - 256
    return code


def signal_name(code: int) -> str:
    """`exit code 1` or `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signals.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
