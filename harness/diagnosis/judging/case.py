"""Findings and facts side by side, with the questions that the judges ask of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from harness.contract.diagnosis import Evidence
from harness.contract.heartbeat import Heartbeat, RankExit
from harness.contract.outcome import Confidence
from harness.diagnosis.reading.exits import normal_code
from harness.diagnosis.reading.findings import Exit, Findings, Hit
from harness.diagnosis.signatures.signature import STOPS, Tier

NEVER_RAN = frozenset({"unschedulable", "image_pull"})
"""True only for a pod that never ran: later success makes them history."""
MENTIONED = frozenset({"import_error", "hub_download", "jit_build", "data_error", "rendezvous", "disk_full"})
"""Outcomes that programs also print and get over: said outside of a traceback, any traceback is the better answer."""
SURVIVED_BY = 5
"""Progress lines after an error (three times the ranks, if that is more) that show it was survived."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a structured fact (pod, event, flight recorder) says by itself."""

    outcome: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    sentence: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck:
    """What the flight recorders say: who did not come, to what."""

    culprit_rank: int | None
    operation: str
    sequence: int
    elements: int
    last_completed: dict[int, int]
    """Per rank: sequence number of the last collective it completed."""
    evidence: tuple[Evidence, ...]
    mismatch: str = ""
    """The two calls that met under one sequence number, when ranks disagree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known beside the text of the logs."""

    exit_code: int | None = None
    exits: tuple[RankExit, ...] = ()
    completed: bool = False
    cancelled: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    stuck: Stuck | None = None
    heartbeats: tuple[Heartbeat, ...] = ()
    stacks: tuple[Evidence, ...] = ()
    """Where each rank's main thread stood when it was asked: file `stacks-<rank>.txt`."""
    started: bool = True


@dataclass
class Case:
    """One death (or none) to judge."""

    findings: Findings
    facts: Facts = field(default_factory=Facts)

    def hits(self, tier: Tier) -> list[Hit]:
        """Hits of one tier in order."""
        return [h for h in self.findings.hits if h.signature.tier is tier]

    @cached_property
    def exits(self) -> list[Exit]:
        """Ends of processes, from the supervisor when it tells, else from the text."""
        if not self.facts.exits:
            return self.findings.exits
        ended = sorted(self.facts.exits, key=lambda e: (e.at_s is None, e.at_s or 0.0))
        first = ended[0].rank if ended[0].at_s is not None and self.facts.cancelled is None else None
        return [
            Exit(
                rank=e.rank,
                code=exit_number(e),
                file=f"exit-{e.rank}.json",
                line=0,
                text=exit_text(e),
                first=e.rank == first,
            )
            for e in ended
            if exit_number(e) is not None
        ]

    @cached_property
    def own_failures(self) -> list[Exit]:
        """Ends that nobody else brought about: not 0, no SIGTERM but the very first; the first one first."""
        failed = [e for e in self.exits if e.code not in (None, 0, -15) or (e.code == -15 and e.first)]
        return sorted(failed, key=lambda e: not e.first)

    @cached_property
    def died_alone(self) -> Exit | None:
        """The one rank that a signal ended before, and other than, all others: nobody's clean-up does that."""
        ends = self.exits if self.facts.exits else []
        if not ends or ends[0].code is None or ends[0].code >= 0 or ends[0].code == -15:
            return None
        return ends[0] if sum(e.code == ends[0].code for e in ends) == 1 else None

    @cached_property
    def failed(self) -> bool:
        """Whether anything says that the run ended badly."""
        code = self.facts.exit_code
        return (
            bool(self.own_failures)
            or (code is not None and code != 0)
            or any(h.signature.name == "launcher-exception" for h in self.findings.hits)
        )

    def survived(self, hit: Hit) -> bool:
        """Whether training went on long after the error.

        A traceback must also have progress before it: a process that dies writes its buffered output last.
        """
        before = hit.progress >= 1 or not hit.in_traceback
        return before and self.progress_after(hit) >= max(SURVIVED_BY, 3 * len(self.findings.ranks))

    def progress_after(self, hit: Hit) -> int:
        """Progress lines of its file after a hit."""
        return self.findings.progress.get(hit.file, 0) - hit.progress

    @cached_property
    def causes(self) -> list[Hit]:
        """The best hit of every episode of real errors, most telling first."""
        episodes: dict[int, list[Hit]] = {}
        for hit in self.hits(Tier.CAUSE):
            if self.facts.cancelled is not None and hit.signature.outcome in STOPS:
                continue  # the supervisor's own signal, seen by the launcher
            if not self._restart_echo(hit):
                episodes.setdefault(hit.episode, []).append(hit)
        best = [min(hits, key=_within_episode) for hits in episodes.values()]
        alive = [h for h in best if not self.survived(h)]
        return sorted(alive or (best if self.failed else []), key=self._across_episodes)

    def _restart_echo(self, hit: Hit) -> bool:
        """Whether a rendezvous was closed because a worker had failed and the launcher was starting all anew."""
        if hit.signature.name != "elastic-rendezvous" or "Error" not in hit.text:
            return False
        restarts = [h for h in self.hits(Tier.MESSENGER) if h.signature.name == "worker-restart"]
        told: list[Exit | Hit] = [*self.own_failures, *restarts]
        return any(one.file == hit.file and one.line < hit.line for one in told)

    @cached_property
    def _killed(self) -> frozenset[int | None]:
        """Ranks that ended well or by the launcher's SIGTERM, by the supervisor's word."""
        return frozenset(e.rank for e in self.exits if e.code in (-15, 0)) if self.facts.exits else frozenset()

    @cached_property
    def _several_files(self) -> bool:
        return len({h.file for h in self.findings.hits}) > 1

    def _across_episodes(self, hit: Hit) -> tuple[bool, bool, bool, bool, bool, int]:
        return (
            hit.soft,
            # A dead peer looks like a broken link from afar: any rank's own error is the better answer.
            hit.signature.outcome == "network_fault",
            not hit.in_traceback and hit.signature.outcome in MENTIONED,
            hit.rank is not None and hit.rank in self._killed,
            self._several_files and hit.signature.outcome == "python_exception",
            hit.order,
        )

    def heartbeat(self, rank: int | None) -> Heartbeat | None:
        """The last heartbeat of a rank."""
        return next((h for h in self.facts.heartbeats if h.rank == rank), None)


def exit_number(end: RankExit) -> int | None:
    """An exit as one number, negative for a signal."""
    if end.signal:
        import signal

        return -int(getattr(signal, end.signal, 0)) or None
    return None if end.exit_code is None else normal_code(end.exit_code)


def exit_text(end: RankExit) -> str:
    """`rank 1 ended by SIGKILL`."""
    how = f"ended by {end.signal}" if end.signal else f"ended with exit code {end.exit_code}"
    return f"rank {end.rank} {how}"


def _within_episode(hit: Hit) -> tuple[bool, bool, bool, int]:
    signature = hit.signature
    return (hit.soft, signature.outcome == "python_exception", signature.confidence != "high", hit.order)


def evidence_of(items: Iterable[Hit | Exit]) -> tuple[Evidence, ...]:
    """At most three lines, no text twice."""
    lines: dict[str, Evidence] = {}
    for item in items:
        lines.setdefault(item.text, item.evidence())
    return tuple(list(lines.values())[:3])
