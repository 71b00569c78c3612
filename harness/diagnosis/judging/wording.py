"""Put a deciding line or exit code into words: outcome, rank, sentence and evidence."""

import re

from harness.contract.outcome import OUTCOMES, Confidence, Diagnosis, Evidence
from harness.diagnosis.judging.case import Case, evidence_of
from harness.diagnosis.judging.stuck import busy_line
from harness.diagnosis.memory import processes_on_card, read_shortage
from harness.diagnosis.reading.exits import signal_name
from harness.diagnosis.reading.findings import Exit, Hit
from harness.diagnosis.signatures.signature import STOPS, Tier

SIGNALS: dict[int, tuple[str, Confidence, str]] = {
    -9: (
        "host_oom",
        "low",
        "was killed with SIGKILL and left no error: often by the kernel's out-of-memory killer, but others send it too",
    ),
    -11: ("segfault", "high", "died of a segmentation fault"),
    -7: ("shm_exhausted", "medium", "died of a bus error: usually /dev/shm is full"),
    -6: ("segfault", "medium", "aborted in native code"),
    -4: ("segfault", "medium", "died of an illegal instruction"),
    -8: ("segfault", "medium", "died of an arithmetic fault in native code"),
    -15: ("preemption", "low", "was ended by SIGTERM from outside"),
    -2: ("user_cancelled", "medium", "was interrupted"),
    -1: ("user_cancelled", "low", "lost its terminal"),
    124: ("deadline", "medium", "was ended by timeout(1)"),
}

EVERYBODYS = frozenset({"config_error", "import_error", "numerics", "jit_build", "hub_download", "driver_mismatch"})
"""Outcomes that hit all ranks alike, so that no rank is the culprit."""
LATE = frozenset({"late-rank", "store-timeout"})
"""Signatures of a rank that timed out at start-up while it waited for another one."""
_OTHER_RANK = re.compile(r"(?:from \[|at and around rank )(\d+)")
_NAMES = re.compile(
    r"mlx\d|/dev/|\bGPU ?\d|PCI:|cuda:\d|CUDA device|<\d+>|['\"]/[^'\"]+['\"]|\.(?:pt|bin|json|safetensors)\b"
)


def from_exit(end: Exit) -> Diagnosis | None:
    """What an exit code or a signal means when there is no other evidence; None when it means nothing."""
    if end.code not in SIGNALS:
        return None
    outcome, confidence, what = SIGNALS[end.code]
    who = "The process" if end.rank is None else f"Rank {end.rank}"
    return say(
        outcome, confidence, culprit=end.rank, evidence=(end.evidence(),),
        sentence=f"{who} {what} ({signal_name(end.code)}).",
    )  # fmt: skip


def from_hit(case: Case, hit: Hit) -> Diagnosis:
    """The diagnosis from one deciding line."""
    outcome, rank = hit.signature.outcome, _rank(case, hit)
    if outcome == "cuda_oom" and read_shortage(hit.text).fragmented:
        outcome = "cuda_oom_fragmentation"
    busy = busy_line(case, rank) if hit.signature.name in LATE else None
    sibling = [h for h in _siblings(case, hit) if h.rank == rank] if hit.rank is None and rank is not None else []
    confidence: Confidence = "low" if hit.soft else hit.signature.confidence
    return say(
        outcome, confidence, culprit=rank, sentence=_sentence(outcome, hit, rank, busy),
        evidence=evidence_of(h for h in (hit, busy, *sibling[:1], *_beside(case, hit), *case.own_failures[:1]) if h),
        runner_up=other(_second_outcome(case, hit), outcome),
    )  # fmt: skip


def _rank(case: Case, hit: Hit) -> int | None:
    """The rank whose failure the line reports; a rank that waited usually reports another one's."""
    outcome, ends = hit.signature.outcome, [e.rank for e in case.own_failures if e.rank is not None]
    if outcome in EVERYBODYS and _everybody(case, hit):
        return None
    if outcome == "network_fault" or hit.signature.name in LATE or hit.signature.name == "nccl-mismatch":
        named = _OTHER_RANK.search(hit.text)
        return int(named[1]) if named else None
    if hit.rank is not None:
        return hit.rank
    ranks = {h.rank for h in _siblings(case, hit) if h.rank is not None}
    if len(ranks) == 1:
        return ranks.pop()
    gpu = read_shortage(hit.text).gpu if outcome == "cuda_oom" else None
    if gpu and (gpu in ends or not ends):
        return gpu
    if hit.signature.tier is Tier.CAUSE and outcome not in STOPS and outcome != "launcher_args":
        return ends[0] if ends else None
    return None


def _sentence(outcome: str, hit: Hit, rank: int | None, busy: Hit | None) -> str:
    who = "A rank" if rank is None else f"Rank {rank}"
    sentence = OUTCOMES[outcome].sentence
    if hit.signature.name in LATE:
        sentence = f"{who} was late at start-up, and the others' patience ended."
    elif hit.signature.name == "nccl-mismatch":
        pointed = f"; NCCL points at rank {rank}" if rank is not None else ""
        sentence = f"The ranks called different collectives{pointed}."
    elif sentence.startswith("A rank "):
        sentence = f"{who} {sentence.removeprefix('A rank ')}"
    extra = ""
    if outcome in ("cuda_oom", "cuda_oom_fragmentation"):
        extra = read_shortage(hit.text).sentence()
        if (sharing := processes_on_card(hit.text)) > 1:
            extra = f"{sharing} processes share the card; {extra}"
    elif outcome == "python_exception":
        extra = hit.text
    elif busy is not None:
        extra = f"the log shows what it was doing ({busy.text[:80]})"
    return f"{sentence.rstrip('.')}: {extra}." if extra else sentence


def _everybody(case: Case, hit: Hit) -> bool:
    alike = {h.rank for h in case.findings.hits if h.signature is hit.signature}
    return len(case.findings.ranks) > 1 and alike >= case.findings.ranks


def _siblings(case: Case, hit: Hit) -> list[Hit]:
    """Other lines about the same failure: the same outcome, or the exception that follows NCCL's warning."""
    return [
        h
        for h in case.findings.hits
        if h is not hit
        and (
            (h.signature.outcome == hit.signature.outcome and h.signature.tier is hit.signature.tier)
            or (h.signature.name == "nccl-unhandled" and "NCCL WARN" in hit.text and h.file == hit.file)
        )
    ]


def _beside(case: Case, hit: Hit) -> list[Hit]:
    """Another line of the same event that names a device, a file or a peer."""
    others = (h for h in case.findings.hits if h.episode == hit.episode and h.file == hit.file and h is not hit)
    return [h for h in others if _NAMES.search(h.text) and h.signature.tier is not Tier.BENIGN][:1]


def say(
    outcome: str,
    confidence: Confidence,
    *,
    culprit: int | None = None,
    evidence: tuple[Evidence, ...] = (),
    runner_up: str | None = None,
    sentence: str = "",
) -> Diagnosis:
    """Build a Diagnosis; the outcome's own sentence stands in for a missing one."""
    return Diagnosis(
        outcome=outcome,
        confidence=confidence,
        culprit_rank=culprit,
        evidence=evidence,
        runner_up=other(runner_up, outcome),
        sentence=sentence or OUTCOMES[outcome].sentence,
    )


def other(candidate: str | None, outcome: str) -> str | None:
    """The outcome as a runner-up, if it competes with the deciding one."""
    return None if candidate in (outcome, "unknown", "ok") else candidate


def _second_outcome(case: Case, hit: Hit) -> str | None:
    """The other outcome that the evidence supports; a stop that came after the failure is not one."""
    hits = [*case.causes, *case.hits(Tier.WATCHDOG), *case.hits(Tier.HINT)]
    rivals = (h.signature.outcome for h in hits if h.signature.outcome not in STOPS or h.order < hit.order)
    return next((name for name in rivals if name != hit.signature.outcome), None)
