"""Collectives that never ended: what the watchdogs say, and who did not come."""

import re
from collections import Counter

from harness.diagnosis.findings import Findings, Sequence, Wait

_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, (?:TensorShape=\[(?P<shape>[\d, ]*)\]|NumelIn=(?P<nin>\d+), NumelOut=(?P<nout>\d+)))?"
    r", Timeout\(ms\)=(?P<timeout>\d+)\) ran for (?P<elapsed>\d+) milliseconds"
)
_LAST = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)", re.I
)


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
                elements_out=int(match["nout"] or elements),
                timeout_ms=int(match["timeout"]),
                elapsed_ms=int(match["elapsed"]),
                file=self._file,
                line=number,
                text=text.strip()[:500],
            )
        )


def absent_rank(findings: Findings) -> int | None:
    """The rank that never joined: fewest enqueued collectives, else the only rank that did not wait."""
    sequences = findings.sequences
    waiting = {w.rank for w in findings.waits if w.rank is not None}
    if len(sequences) > 1:
        fewest = min(s.enqueued for s in sequences.values())
        behind = [r for r, s in sequences.items() if s.enqueued == fewest]
        if len(behind) == 1 and any(s.enqueued > fewest for s in sequences.values()):
            return behind[0]
    missing = findings.ranks - waiting
    if waiting and len(missing) == 1 and len(findings.ranks) > 1:
        return missing.pop()
    return None


def mismatch(findings: Findings) -> tuple[list[Wait], int | None] | None:
    """Waits of one sequence number that differ in operation or size, and the odd rank when there is a majority."""
    by_sequence: dict[int, list[Wait]] = {}
    for wait in findings.waits:
        by_sequence.setdefault(wait.sequence, []).append(wait)
    for sequence in sorted(by_sequence):
        waits = by_sequence[sequence]
        kinds = Counter((w.operation, w.elements_in) for w in waits)
        if sequence >= 0 and len(kinds) > 1:
            rarest = min(kinds, key=lambda k: kinds[k])
            odd = [w for w in waits if (w.operation, w.elements_in) == rarest]
            return waits, odd[0].rank if len(odd) == 1 and len(waits) > 2 else None
    return None


def describe(wait: Wait) -> str:
    """`ALLREDUCE 154 of 16781312 elements for 20 s`."""
    number = f" {wait.sequence}" if wait.sequence >= 0 else ""
    size = f" of {wait.elements_in} element{'s' if wait.elements_in != 1 else ''}" if wait.elements_in >= 0 else ""
    return f"{wait.operation}{number}{size} for {wait.elapsed_ms / 1000:.0f} s"
