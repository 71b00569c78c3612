"""How launchers, shells and schedulers report a process's end, and watchdogs report a collective without one."""

import re
import signal as signals

from harness.diagnosis.reading.findings import Exit, Findings, Sequence, Wait

_WORDS = {
    "Killed": signals.SIGKILL, "Terminated": signals.SIGTERM, "Segmentation fault": signals.SIGSEGV,
    "Aborted": signals.SIGABRT, "Out Of Memory": signals.SIGKILL,
    "Bus error": signals.SIGBUS, "Illegal instruction": signals.SIGILL,
}  # fmt: skip
_WORD = "|".join(_WORDS)

# (text that the line must hold, pattern). Groups are rank, code (of an exit), number, name or word (of a signal).
_ENDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (gate, re.compile(pattern))
    for gate, pattern in (
        ("exitcode:", r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: \d+\)"),
        ("return code =", r"(?:--local[_-]rank=(?P<rank>\d+)\b.*)?exits with return code = (?P<code>-?\d+)"),
        (
            "srun: error:",
            rf"srun: error: \S+: tasks? (?P<rank>\d+)[\d,-]*: "
            rf"(?:(?P<word>{_WORD})|Exited with exit code (?P<code>\d+))",
        ),
        (
            "ank ",
            r"[Rr]ank (?P<rank>\d+)(?: \(PID \d+\))? (?:crashed with exit code|exited with code) (?P<code>-?\d+)",
        ),
        ("Child process", r"Child process with PID \d+ terminated with code (?P<code>-?\d+)"),
        ("exited on signal", r"rank (?P<rank>\d+) with PID \d+ on node .* exited on signal (?P<number>\d+)"),
        ("died with <Signals", r"died with <Signals\.\w+: (?P<number>\d+)>"),
        ("non-zero exit status", r"returned non-zero exit status (?P<code>\d+)"),
        (
            "terminated with",
            r"process (?P<rank>\d+) terminated with (?:signal (?P<name>SIG\w+)|exit code (?P<code>\d+))",
        ),
        ("xit", r"(?i:exit(?:ed)?(?: with)?(?: exit)? ?(?:code|status))\"?[:= ]+(?P<code>-?\d{1,3})\b"),
        ("", rf"(?:^|: )(?:line \d+: +)?(?:\d+ )?(?P<word>{_WORD})(?: +\(core dumped\)| {{2,}}\S|$)"),
    )
)  # fmt: skip
_TABLE_RANK = re.compile(r"^\s*rank\s+: (?P<rank>\d+) \(local_rank: \d+\)")
_TABLE_CODE = re.compile(r"^\s*exitcode\s+: (?P<code>-?\d+) \(pid: \d+\)")
_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, (?:TensorShape=\[(?P<shape>[\d, ]*)\]|NumelIn=(?P<nin>\d+), NumelOut=\d+))?"
    r", Timeout\(ms\)=\d+\) ran for (?P<elapsed>\d+) milliseconds"
)
_LAST = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)", re.I
)
_STARTED = re.compile(r"Started container|^\s*Started:\s")


class ExitReader:
    """State of one file: the launcher's failure table names a rank in one row and its code in the next."""

    def __init__(self, findings: Findings, file: str) -> None:
        self._findings, self._file = findings, file
        self._row_rank: int | None = None
        self._root = False

    def feed(self, number: int, text: str, rank: int | None) -> None:
        """Take one normalised line; `rank` is the rank in its prefix."""
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
        elif found := read_end(text):
            self._add(rank if found[0] is None else found[0], found[1], number, text)
        elif _STARTED.search(text):
            self._findings.started_pod = True

    def _add(self, rank: int | None, code: int, number: int, text: str, first: bool = False) -> None:
        self._findings.exits.append(
            Exit(rank=rank, code=code, file=self._file, line=number, text=text.strip()[:500], first=first)
        )


def read_end(text: str) -> tuple[int | None, int] | None:
    """(rank, code) of a process's end that a line reports; a negative code is a signal."""
    for gate, pattern in _ENDS:
        match = pattern.search(text) if gate in text else None
        if match:
            groups = match.groupdict()
            rank = int(groups["rank"]) if groups.get("rank") else None
            return rank, _code(groups)
    return None


def _code(groups: dict[str, str | None]) -> int:
    if groups.get("code"):
        return normal_code(int(str(groups["code"])))
    if groups.get("number"):
        return -int(str(groups["number"]))
    if groups.get("name"):
        return -int(getattr(signals, str(groups["name"]), 0))
    return -int(_WORDS[str(groups["word"])])


def normal_code(code: int) -> int:
    """A shell's 128+n and deepspeed's 256-n as -n; other codes as they are."""
    if 128 < code < 128 + 65:
        return 128 - code
    if 256 - 65 < code < 255:
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


class WaitReader:
    """Collects one file's waits and sequence numbers."""

    def __init__(self, findings: Findings, file: str) -> None:
        self._findings, self._file = findings, file
        self._seen: set[tuple[int | None, int]] = set()

    def feed(self, number: int, text: str, rank: int | None) -> None:
        """Take one normalised line."""
        if "OpType=" in text and (match := _WORK.search(text)):
            self._wait(number, text, rank, match)
        if rank is not None and "ast enqueued" in text and (match := _LAST.search(text)):
            self._findings.sequences[rank] = Sequence(
                rank, int(match["enqueued"]), int(match["completed"]), self._file, number, text.strip()[:500]
            )

    def _wait(self, number: int, text: str, rank: int | None, match: re.Match[str]) -> None:
        sequence = int(match["seq"] or -1)
        if (rank, sequence) in self._seen:
            return
        self._seen.add((rank, sequence))
        elements = int(match["nin"] or -1)
        if match["shape"]:
            elements = 1
            for size in match["shape"].split(","):
                elements *= int(size)
        self._findings.waits.append(
            Wait(
                rank=rank,
                sequence=sequence,
                operation=match["op"],
                elements_in=elements,
                elapsed_ms=int(match["elapsed"]),
                file=self._file,
                line=number,
                text=text.strip()[:500],
            )
        )
