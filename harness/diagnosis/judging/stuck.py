"""Judge a collective wedge: which collective, which rank never joined, and whether memory is the cause."""

import re
from collections import Counter

from harness.contract.heartbeat import PHASES, Heartbeat
from harness.contract.outcome import Diagnosis, Evidence
from harness.diagnosis.judging.case import Case
from harness.diagnosis.memory import NEAR_LINE_SHARE, near_full, show
from harness.diagnosis.reading.findings import Findings, Hit, Wait
from harness.diagnosis.signatures.signature import Tier

_FAULTY = re.compile(r"[Rr]ank (\d+)(?:\. Please check| failed to pass)")
_WAITING = re.compile(r"/torch/(?:autograd|distributed|nn/parallel|cuda|_tensor)|/deepspeed/")
_OOM = ("cuda_oom", "cuda_oom_fragmentation")
_CAUGHT = ("oom-recovered", "oom-caught", "allocation-refused")
"""Signatures of an out-of-memory that ended nothing by itself."""
_REFUSED = re.compile(r"ALLOCATION REFUSED at (?P<at_s>\d+\.\d+)")
REFUSED_BEFORE_S = 30.0
"""If a rank lived on for longer after its allocator refused memory, that is not why it fell silent."""


def wait_came_first(case: Case, hit: Hit) -> bool:
    """Whether the error is a waiting rank's, after its watchdog fired: then the wait is what to explain."""
    return any(
        w.file == hit.file and w.line < hit.line and (hit.rank is None or hit.rank == w.rank)
        for w in case.findings.waits
    )


def swallowed_oom(case: Case, hit: Hit) -> bool:
    """Whether an out-of-memory did not end its rank, and the others then waited for it."""
    waited = [h for h in case.hits(Tier.WATCHDOG) if h.order > hit.order and (h.rank != hit.rank or h.rank is None)]
    stalled = case.facts.cancelled == "stall"
    if hit.signature.outcome not in _OOM or not (waited or stalled):
        return False
    ends = [e.code for e in case.exits if e.rank == hit.rank and hit.rank is not None]
    if ends:
        return not any(code is not None and code > 0 for code in ends)
    return stalled or not hit.in_traceback


def judge_wedge(case: Case) -> Diagnosis | None:
    """The diagnosis when ranks waited for one of them."""
    watchdogs, stuck = case.hits(Tier.WATCHDOG), case.facts.stuck
    if not (watchdogs or case.findings.waits or stuck or case.facts.cancelled == "stall"):
        return None
    if not watchdogs and stuck is None and case.died_alone is not None:
        return None  # A rank died, and the others' wait only follows from that.
    odd = mismatch(case.findings)
    culprit = _culprit(case) if odd is None else odd[1]
    evidence = [w.evidence() for w in case.findings.waits[:2]] or [h.evidence() for h in watchdogs[:1]]
    if stuck is not None:
        evidence += stuck.evidence
    parts = [_what(case, odd)]
    memory = _memory(case, culprit)
    if culprit is not None:
        parts.append(f"rank {culprit} never joined" if odd is None else f"rank {culprit} is the odd one")
        parts += _position(case, culprit)
        evidence += _whereabouts(case, culprit)
    if odd is None and (busy := busy_line(case, culprit)) is not None:
        parts.append(f"meanwhile the log shows work: {busy.text[:80]}")
        evidence.insert(1, busy.evidence())
    if memory is not None:
        evidence.insert(0, memory[0])
        parts.append(memory[1])
    certain = culprit is not None or odd is not None
    return Diagnosis(
        outcome="wedge_masking_oom" if memory else "collective_wedge",
        confidence="high" if certain else "medium",
        culprit_rank=culprit,
        evidence=tuple(evidence[:4]),
        runner_up="cuda_oom" if memory else "wedge_masking_oom" if _near_the_line(case) else None,
        sentence=f"The ranks waited in {'; '.join(parts)}.",
    )


def _what(case: Case, odd: object) -> str:
    if case.facts.stuck is not None and case.facts.stuck.mismatch:
        return f"different collectives: {case.facts.stuck.mismatch}"
    if odd is not None:
        waits = mismatch(case.findings)
        assert waits is not None
        kinds = {f"rank {w.rank} in {describe(w)}" for w in waits[0]}
        return f"different collectives: {', '.join(sorted(kinds)[:3])}"
    if any(h.signature.name in ("gloo-mismatch", "desync") for h in case.hits(Tier.WATCHDOG)):
        return "different collectives, or one collective with different sizes"
    waits_ = case.findings.waits
    if waits_:
        return describe(min(waits_, key=lambda w: (w.sequence < 0, w.sequence)))
    if case.facts.stuck is not None:
        s = case.facts.stuck
        return f"{s.operation} {s.sequence} of {s.elements} elements"
    return "a collective"


def _culprit(case: Case) -> int | None:
    if case.facts.stuck is not None and case.facts.stuck.culprit_rank is not None:
        return case.facts.stuck.culprit_rank
    for hit in case.hits(Tier.WATCHDOG):
        if match := _FAULTY.search(hit.text):
            return int(match[1])
    if any(h.signature.name == "gloo-mismatch" for h in case.hits(Tier.WATCHDOG)):
        return _silent(case.facts.heartbeats)
    found = absent_rank(case.findings)
    if found is None:
        found = _elsewhere(case)
    if found is None:
        waiting = {h.rank for h in case.hits(Tier.WATCHDOG) if h.rank is not None} | aborted(case.findings)
        missing = case.findings.ranks - waiting
        found = missing.pop() if waiting and len(missing) == 1 else None
    return found if found is not None else _silent(case.facts.heartbeats)


def busy_line(case: Case, rank: int | None) -> Hit | None:
    """The last line that shows long work (data, a download) of one rank or of an unnamed one."""
    waiting = {w.rank for w in case.findings.waits}
    lines = [h for h in case.hits(Tier.BENIGN) if h.signature.name == "long-work"]
    lines = [h for h in lines if h.rank in (rank, None) and (h.rank is None or h.rank not in waiting)]
    return lines[-1] if lines else None


def _silent(beats: tuple[Heartbeat, ...]) -> int | None:
    """The one rank whose last heartbeat is furthest behind, in steps, else in phases of the step.

    The time of the heartbeat does not show it: a rank that waits goes silent first.
    """
    if len(beats) < 2:
        return None
    places = sorted((b.step, PHASES.index(b.phase) if b.phase in PHASES else 0, b.rank) for b in beats)
    return places[0][2] if places[0][:2] < places[1][:2] else None


def _elsewhere(case: Case) -> int | None:
    """The one rank whose stack is not in a collective or the backward pass when all others' are."""
    ranks = {int(s.file.removeprefix("stacks-").removesuffix(".txt")): s.text for s in case.facts.stacks}
    elsewhere = [rank for rank, frame in ranks.items() if not _WAITING.search(frame)]
    return elsewhere[0] if len(elsewhere) == 1 and len(ranks) > 1 else None


def _position(case: Case, culprit: int) -> list[str]:
    parts = []
    beat = case.heartbeat(culprit)
    if beat is not None:
        free = f", {show(beat.free_bytes)} free" if beat.free_bytes >= 0 else ""
        parts.append(f"last seen in {beat.phase} of step {beat.step}{free}")
    sequence = case.findings.sequences.get(culprit)
    if sequence is not None:
        parts.append(f"its last completed collective was {sequence.completed}")
    elif case.facts.stuck is not None and culprit in case.facts.stuck.last_completed:
        parts.append(f"its last completed collective was {case.facts.stuck.last_completed[culprit]}")
    return parts


def _whereabouts(case: Case, culprit: int) -> list[Evidence]:
    """The culprit's last heartbeat and stack, as evidence."""
    found = [s for s in case.facts.stacks if s.file == f"stacks-{culprit}.txt"]
    beat = case.heartbeat(culprit)
    if beat is not None:
        latest = max(b.at_s for b in case.facts.heartbeats)
        text = (
            f"rank {culprit}: {beat.phase} of step {beat.step}, {latest - beat.at_s:.0f} s before the last sign of life"
        )
        found.insert(0, Evidence(file=f"heartbeat-{culprit}.json", line=1, text=text))
    return found


def _near_the_line(case: Case) -> bool:
    return any(near_full(b.allocated_bytes, b.free_bytes, NEAR_LINE_SHARE) for b in case.facts.heartbeats)


def _long_before(hit: Hit, beat: Heartbeat | None) -> bool:
    """Whether the rank lived on for long after its allocator had refused memory."""
    match = _REFUSED.search(hit.text)
    return match is not None and beat is not None and beat.at_s - float(match["at_s"]) > REFUSED_BEFORE_S


def _memory(case: Case, culprit: int | None) -> tuple[Evidence, str] | None:
    """Why memory is the cause: an allocation failure in the culprit's log, or a device nearly full."""
    beat = case.heartbeat(culprit)
    for hit in case.findings.hits:
        oom = hit.signature.outcome in _OOM or hit.signature.name in _CAUGHT
        here = hit.rank == culprit or hit.rank is None or culprit is None
        if oom and here and not case.survived(hit) and not _long_before(hit, beat):
            return hit.evidence(), "an allocation failed there"
    if beat is not None and near_full(beat.allocated_bytes, beat.free_bytes):
        text = f"rank {beat.rank}: {beat.phase} of step {beat.step}, {show(beat.free_bytes)} of device memory free"
        return Evidence(file=f"heartbeat-{beat.rank}.json", line=1, text=text), "its device was nearly full"
    return None


def absent_rank(findings: Findings) -> int | None:
    """The rank that never joined: fewest enqueued collectives, else the only rank that did not wait."""
    sequences = findings.sequences
    waiting = {w.rank for w in findings.waits if w.rank is not None}
    if len(sequences) > 1:
        fewest = min(s.enqueued for s in sequences.values())
        behind = [r for r, s in sequences.items() if s.enqueued == fewest]
        if len(behind) == 1 and any(s.enqueued > fewest for s in sequences.values()):
            return behind[0]
    missing = findings.ranks - waiting - aborted(findings)
    if waiting and len(missing) == 1 and len(findings.ranks) > 1:
        return missing.pop()
    return _gap(waiting | aborted(findings)) if waiting else None


def aborted(findings: Findings) -> set[int]:
    """Ranks whose NCCL timed out: they waited too, though they named no collective."""
    return {h.rank for h in findings.hits if h.signature.name == "nccl-abort" and h.rank is not None}


def _gap(waiting: set[int]) -> int | None:
    """The only rank missing among those below the highest waiting rank, or within one node."""
    if len(waiting) < 2:
        return None
    for lowest in (0, min(waiting)):
        gaps = set(range(lowest, max(waiting))) - waiting
        # A node's first rank is a multiple of its number of GPUs.
        if len(gaps) == 1 and lowest % 4 == 0:
            return gaps.pop()
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
