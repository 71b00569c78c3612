"""Findings and facts side by side, with the questions that the judges ask of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from harness.contract.heartbeat import Heartbeat, RankExit
from harness.contract.outcome import Confidence, Evidence
from harness.diagnosis.reading.exits import normal_code
from harness.diagnosis.reading.findings import Exit, Findings, Hit
from harness.diagnosis.signatures.signature import STOPS, Tier

NEVER_RAN = frozenset({"unschedulable", "image_pull"})
"""Verdicts that hold only for a pod that never ran; a later success overrules them."""
MENTIONED = frozenset({"import_error", "hub_download", "jit_build", "data_error", "rendezvous", "disk_full"})
"""Outcomes that programs also print and survive: outside a traceback, they lose against any traceback."""
SURVIVED_BY = 5
"""This many progress lines after an error (or three per rank, if more) show that the run survived it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The diagnosis that one structured fact (pod, event, flight recorder) gives by itself."""

    outcome: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    sentence: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck:
    """From the flight recorders: the ranks that a collective still waits for."""

    culprit_rank: int | None
    operation: str
    sequence: int
    elements: int
    last_completed: dict[int, int]
    """Per rank: sequence number of the last collective it completed."""
    evidence: tuple[Evidence, ...]
    mismatch: str = ""
    """The two calls under one sequence number, when ranks disagree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts besides the text of the logs."""

    exit_code: int | None = None
    exits: tuple[RankExit, ...] = ()
    completed: bool = False
    cancelled: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    stuck: Stuck | None = None
    heartbeats: tuple[Heartbeat, ...] = ()
    stacks: tuple[Evidence, ...] = ()
    """The innermost frame of each rank's main thread, from `stacks-<rank>.txt`."""
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
        """Ends of processes: from the supervisor where it knows them, else from the text."""
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
        """Failures that no other process caused, in order of time; a SIGTERM counts only if it came first."""
        failed = [e for e in self.exits if e.code not in (None, 0, -15) or (e.code == -15 and e.first)]
        return sorted(failed, key=lambda e: not e.first)

    @cached_property
    def died_alone(self) -> Exit | None:
        """The only rank that died of a signal first, and of another signal than the rest: clean-up does not do that."""
        ends = self.exits if self.facts.exits else []
        if not ends or ends[0].code is None or ends[0].code >= 0 or ends[0].code == -15:
            return None
        return ends[0] if sum(e.code == ends[0].code for e in ends) == 1 else None

    @cached_property
    def failed(self) -> bool:
        """Whether anything shows a bad end."""
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
        """The best hit of each episode of real errors, strongest first."""
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
        """Whether a rendezvous closed because a worker had failed and the launcher was restarting all ranks."""
        if hit.signature.name != "elastic-rendezvous" or "Error" not in hit.text:
            return False
        restarts = [h for h in self.hits(Tier.MESSENGER) if h.signature.name == "worker-restart"]
        told: list[Exit | Hit] = [*self.own_failures, *restarts]
        return any(one.file == hit.file and one.line < hit.line for one in told)

    @cached_property
    def _killed(self) -> frozenset[int | None]:
        """Ranks that ended well or by the launcher's SIGTERM, as the supervisor recorded."""
        return frozenset(e.rank for e in self.exits if e.code in (-15, 0)) if self.facts.exits else frozenset()

    @cached_property
    def _several_files(self) -> bool:
        return len({h.file for h in self.findings.hits}) > 1

    def _across_episodes(self, hit: Hit) -> tuple[bool, bool, bool, bool, bool, int]:
        return (
            hit.soft,
            # To other ranks a dead peer looks like a broken link, so a rank's own error is the better answer.
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
    """An end as one number, negative for a signal."""
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
