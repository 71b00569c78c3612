"""Recognise lines: one Scanner per set of logs reads file after file and fills Findings."""

import re
from functools import cache
from pathlib import Path
from typing import IO

from harness.diagnosis.reading.exits import ExitReader, WaitReader
from harness.diagnosis.reading.findings import Findings, Hit
from harness.diagnosis.reading.stream import blocks, decompress
from harness.diagnosis.reading.text import decode, named_rank, normalise, printable
from harness.diagnosis.reading.tracebacks import Speaker, Tracebacks
from harness.diagnosis.reading.triage import Line, Triage, Vocabulary
from harness.diagnosis.signatures import SIGNATURES
from harness.diagnosis.signatures.signature import STOPS, Signature, Tier

STRUCTURE = (
    "traceback (most", 'file "', "error", "exception", "exitcode", "exit code", "local_rank", "return code", "killed",
    "signal", "seqnum", "last enqueued", "exits successfully", "spawned", "root cause", "rank      :", "terminated",
    "started container", "started:", "exited", "exit status", "during handling", "direct cause", "-- process",
    "died with", "crashed with", "child process", "main process", "non-zero exit", "aborted", "bus error",
)  # fmt: skip
"""Lines with one of these texts are read for their structure, whatever the signatures say."""

SOFT = re.compile(
    r"^(?!.*NCCL WARN)"
    r"(?:.{0,80}(?:\b(?:WARN(?:ING)?|INFO|DEBUG)\b|\b\w*Warning:)|\[?[WI]\d{3,4} |\[[WI] \w+\.cpp)"
)
"""A log line below error level."""

ADVICE = re.compile(
    r"^\W*(?:tips?|hints?|usage notes?|advice)\b|^\s*--?[a-z]|\b(?:if|when) you (?:see|get|hit|encounter|run into) ",
    re.IGNORECASE,
)
"""Prose about errors, which is not an error itself."""


EVIDENCE, BEFORE = 1000, 200
"""Characters kept of a line, and how many of them come before a match far inside a long line."""


@cache
def vocabulary() -> Vocabulary:
    """The needles of all signatures."""
    return Vocabulary(((n, i) for i, s in enumerate(SIGNATURES) for n in s.needles), STRUCTURE)


class Scanner:
    """Reads logs one after the other into one Findings."""

    def __init__(self) -> None:
        self.findings = Findings()
        self._order = 0
        self._episode = 0
        self._vocabulary = vocabulary()
        self._last: dict[tuple[str, Speaker], tuple[int, int]] = {}

    def scan(self, handle: IO[bytes], file: str, rank: int | None = None) -> None:
        """Read one open log; `rank` is the rank in the file's name, if any."""
        findings = self.findings
        findings.files += 1
        triage, last_line = Triage(self._vocabulary), 0
        tracebacks, exits, waits = Tracebacks(), ExitReader(findings, file), WaitReader(findings, file)
        if rank is not None:
            findings.ranks.add(rank)
        try:
            for block in blocks(decompress(handle)):
                last_line = block.last
                for line in triage.lines(block):
                    self._line(line, file, rank, tracebacks, exits, waits)
        except (OSError, EOFError, ValueError) as error:
            findings.unreadable.append(f"{file}: {error}")
        findings.lines += last_line
        findings.progress[file] = triage.progress

    def _line(
        self, line: Line, file: str, owner: int | None, tracebacks: Tracebacks, exits: ExitReader, waits: WaitReader
    ) -> None:
        prefix, worker, text = normalise(decode(line.raw))
        rank = prefix if prefix is not None else owner
        if rank is not None:
            self.findings.ranks.add(rank)
        speaker = rank if worker is None else worker
        text = tracebacks.strip(speaker, text)
        ended = tracebacks.feed(speaker, text)
        if ended is None and tracebacks.inside(speaker, text):
            return
        named = named_rank(text)
        exits.feed(line.number, text, rank)
        waits.feed(line.number, text, named if named is not None else rank)
        signature, at = first_match(text, line.candidates)
        if signature is None and ended is not None and not ended.ignored:
            signature = ended.signature
        if signature is not None and ended is not None:
            signature = ended.reread(signature)
        if signature is None or (ended is not None and ended.ignored and signature.tier is not Tier.BENIGN):
            return
        if ended is None and signature.tier is not Tier.COMPLETE and ADVICE.search(text):
            return
        if rank is None:
            rank = ended.rank if ended is not None and ended.rank is not None else named
        self._order += 1
        self.findings.hits.append(
            Hit(
                signature=signature,
                file=file,
                line=line.number,
                text=printable(text[max(0, at - BEFORE) if at > EVIDENCE // 2 else 0 :].strip())[:EVIDENCE],
                rank=rank,
                order=self._order,
                episode=self._episode_of(file, speaker, line.number, tracebacks.chained(speaker)),
                in_traceback=ended is not None,
                progress=line.progress,
                soft=ended is None and signature.outcome not in STOPS and SOFT.search(text) is not None,
            )
        )

    def _episode_of(self, file: str, speaker: Speaker, number: int, chained: bool) -> int:
        """Hits at most 8 lines apart, or linked by Python's chaining, belong together."""
        previous = self._last.get((file, speaker))
        if previous is None or not (chained or number - previous[1] <= 8):
            self._episode += 1
            episode = self._episode
        else:
            episode = previous[0]
        self._last[file, speaker] = (episode, number)
        return episode


def first_match(text: str, candidates: tuple[int, ...]) -> tuple[Signature | None, int]:
    """The first signature of the table that the text matches, and where."""
    for index in candidates:
        if match := SIGNATURES[index].regex.search(text):
            return SIGNATURES[index], match.start()
    return None, 0


def match_line(text: str) -> Signature | None:
    """The signature that one line of evidence matches."""
    return first_match(text, tuple(range(len(SIGNATURES))))[0]


def match_text(text: str) -> Signature | None:
    """The signature of a message without context, for example a container's termination message."""
    signature = match_line(text)
    return signature if signature is not None and signature.tier in (Tier.VERDICT, Tier.CAUSE) else None


def scan_path(scanner: Scanner, path: Path, name: str, rank: int | None = None) -> None:
    """Scan one file; one that cannot be opened is noted as unreadable."""
    try:
        with path.open("rb") as handle:
            scanner.scan(handle, name, rank)
    except OSError as error:
        scanner.findings.unreadable.append(f"{name}: {error.strerror}")
