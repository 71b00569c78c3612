"""Decide: judges in order of trust; the first that knows the answer gives it (design section 7)."""

import signal
from collections.abc import Callable

from harness.contract.outcome import Confidence, Diagnosis
from harness.diagnosis.judging.case import NEVER_RAN, Case, evidence_of
from harness.diagnosis.judging.stuck import judge_wedge, swallowed_oom, wait_came_first
from harness.diagnosis.judging.wording import from_exit, from_hit, other, say
from harness.diagnosis.reading.exits import normal_code, signal_name
from harness.diagnosis.reading.findings import Exit, Hit
from harness.diagnosis.signatures.signature import STOPS, Tier

Judge = Callable[[Case], Diagnosis | None]


def decide(case: Case) -> Diagnosis:
    """The diagnosis of a case: `unknown` when no judge knows."""
    for judge in JUDGES:
        found = judge(case)
        if found is not None:
            return found
    return unknown(case)


def told(case: Case) -> Diagnosis | None:
    """The supervisor's own knowledge: it saw every result, or it ended the run."""
    if case.facts.completed:
        parity = [h for h in case.hits(Tier.VERDICT) if h.signature.outcome == "parity_mismatch"]
        return from_hit(case, parity[0]) if parity else say("ok", "high", sentence="Every rank delivered its result.")
    if case.facts.cancelled in STOPS:
        return say(case.facts.cancelled, "high", runner_up=_first_outcome(case))
    return None


def structured(case: Case) -> Diagnosis | None:
    """Pod conditions, container states and events."""
    for verdict in case.facts.verdicts:
        if verdict.outcome in NEVER_RAN and _ran(case):
            continue
        return say(
            verdict.outcome, verdict.confidence, evidence=verdict.evidence, sentence=verdict.sentence,
            runner_up=other(_first_outcome(case), verdict.outcome),
        )  # fmt: skip
    return None


def stated(case: Case) -> Diagnosis | None:
    """The same facts as text: output of `describe`, events, slurmstepd, kernel lines."""
    finished, errors_before = finished_run(case), _errors_before(case)
    for hit in sorted(case.hits(Tier.VERDICT), key=lambda h: (h.signature.outcome in STOPS | NEVER_RAN, h.order)):
        name = hit.signature.outcome
        if name in NEVER_RAN and (_ran(case) or finished is not None):
            continue
        sure = finished is not None and (
            case.facts.exit_code == 0 or (finished.confidence == "high" and not case.failed)
        )
        if sure and name not in ("parity_mismatch", "upload_failed"):
            continue
        if name in ("user_cancelled", "deadline") and errors_before(hit):
            continue
        return from_hit(case, hit)
    return None


def finished_run(case: Case) -> Diagnosis | None:
    """The run finished: a marker, every process's successful end, or exit code 0."""
    findings, code = case.findings, case.facts.exit_code
    markers = case.hits(Tier.COMPLETE)
    if any(h.signature.name == "pod-not-ended" for h in case.hits(Tier.BENIGN)):
        # Then another container of the pod ended well, or an earlier try of this one.
        markers = [h for h in markers if h.signature.name not in ("pod-completed", "exit-zero")]
    fatal = [h for h in case.causes if h.in_traceback and not h.soft]
    if 0 < findings.spawned <= findings.finished:
        return say("ok", "high", sentence=f"All {findings.finished} processes ended successfully.")
    if code == 0 and not (fatal and (case.own_failures or (not markers and case.failed))):
        return say("ok", "high" if not fatal else "medium", evidence=evidence_of(markers[-1:]),
                   sentence="The run ended with exit code 0.")  # fmt: skip
    if findings.finished and not findings.spawned and not case.failed:
        return say("ok", "medium", sentence="The launcher saw processes end successfully, and none fail.")
    if not markers:
        return None
    last = markers[-1]
    if last.signature.name == "elastic-succeeded" and code in (None, 0) and not _failed_after(case, last):
        return say("ok", "medium" if case.failed else "high", evidence=evidence_of([last]))
    if any(h.order > last.order for h in fatal) or (case.own_failures and last.signature.name == "exit-zero"):
        return None
    if last.signature.name != "run-complete" and any(h.order > last.order for h in case.hits(Tier.WATCHDOG)):
        return None  # trained to the end, then stuck, for example in the last save
    if last.signature.name != "run-complete" and (case.own_failures or code not in (None, 0)):
        return None
    confidence: Confidence = "high" if not case.failed else "medium"
    return say("ok", confidence, evidence=evidence_of([last]), runner_up=other(_first_outcome(case), "ok"))


def first_error(case: Case) -> Diagnosis | None:
    """The earliest real error of any rank, unless it was swallowed and the others waited."""
    causes = case.causes
    if not causes:
        return None
    hit = causes[0]
    if wait_came_first(case, hit) or swallowed_oom(case, hit):
        return None
    if hit.soft and not case.failed:
        return None
    if hit.signature.outcome in STOPS and len(causes) > 1 and causes[1].episode == hit.episode:
        return None
    return from_hit(case, hit)


def fatal_signal(case: Case) -> Diagnosis | None:
    """A process died of a signal, and no text says why."""
    failures = case.own_failures
    if not failures:
        return None
    # On several nodes the survivors are not ended at once: each fails because of the lost peer, with its own exit code.
    first = case.died_alone or next((e for e in failures if e.code is not None and e.code > 0), failures[0])
    if first.code is None or first.code > 0 or (first.code == -signal.SIGABRT and _nccl_aborted(case)):
        return None
    return from_exit(first)


def _nccl_aborted(case: Case) -> bool:
    """Whether NCCL aborted the process because a peer or the network was gone; that is not a crash."""
    return any(h.signature.name in ("nccl-abort", "nccl-remote") for h in case.hits(Tier.MESSENGER))


def hint(case: Case) -> Diagnosis | None:
    """An error that usually precedes another one, when there is nothing better."""
    news = {h.episode for h in _news(case)}
    nans = [h for h in case.hits(Tier.HINT) if h.signature.name == "nan-loss"]
    to_the_end = len(nans) >= 3 and case.progress_after(nans[-1]) == 0
    for hit in case.hits(Tier.HINT):
        ended_it = case.failed or (to_the_end if hit.signature.name == "nan-loss" else case.progress_after(hit) == 0)
        if hit.episode not in news and not case.survived(hit) and ended_it:
            return from_hit(case, hit)
    return None


def exit_status(case: Case) -> Diagnosis | None:
    """The diagnosis from the exit code alone."""
    code = case.facts.exit_code
    if code is None or code == 0 or (normal_code(code) == -signal.SIGABRT and _nccl_aborted(case)):
        return None
    return from_exit(Exit(rank=None, code=normal_code(code), file="exit-code", line=0, text=f"exit code {code}"))


def unknown(case: Case) -> Diagnosis:
    """No judge knows: `unknown`, with what was seen."""
    messengers = _news(case)
    runner_up = _first_outcome(case)
    if messengers:
        return say(
            "unknown", "low", evidence=evidence_of(messengers), runner_up=runner_up,
            sentence="A rank lost its peer. The peer or the network failed first, and what it said is not in this log.",
        )  # fmt: skip
    evidence = evidence_of([*case.causes[:1], *case.own_failures[:2]])
    if case.findings.unreadable and not evidence:
        # The missing evidence may be in the part of a log that could not be read.
        return say("unknown", "low", runner_up=runner_up, sentence=_unread(case.findings.unreadable))
    if not case.findings.lines:
        return say("unknown", "low", sentence="The log is empty.")
    if case.own_failures:
        return say("unknown", "low", evidence=evidence, runner_up=runner_up,
                   sentence=f"{_ended(case.own_failures[0])}, and its own error is not in this log.")  # fmt: skip
    if not case.failed and not case.findings.hits:
        return say("unknown", "low", sentence="Nothing in this log says that the run failed, or that it finished.")
    return say("unknown", "low", evidence=evidence, runner_up=runner_up)


def _news(case: Case) -> list[Hit]:
    """What waiting ranks say about a peer that is gone."""
    other = ("launcher-exception", "worker-restart", "parent-gone", "ray-potential-causes")
    return [h for h in case.hits(Tier.MESSENGER) if h.signature.name not in other]


def _ended(end: Exit) -> str:
    who = "A process" if end.rank is None else f"Rank {end.rank}"
    return f"{who} ended with {signal_name(end.code or 0)}"


JUDGES: tuple[Judge, ...] = (
    told, structured, stated, finished_run, first_error, judge_wedge, fatal_signal, hint, exit_status,
)  # fmt: skip


def _failed_after(case: Case, marker: Hit) -> bool:
    """Whether anything failed after the launcher's success, or in another file; earlier failures were restarted."""
    errors = [h for h in case.causes if h.in_traceback and not h.soft]
    return any(h.order > marker.order for h in errors) or any(
        e.file != marker.file or e.line > marker.line for e in case.own_failures
    )


def _unread(files: list[str]) -> str:
    more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
    return f"The evidence does not show why the run ended; could not be read whole: {files[0]}{more}."


def _first_outcome(case: Case) -> str | None:
    hits = [*case.causes, *case.hits(Tier.WATCHDOG), *case.hits(Tier.HINT)]
    return hits[0].signature.outcome if hits else None


def _ran(case: Case) -> bool:
    findings = case.findings
    spoke = bool(case.causes) or any(findings.progress.values()) or bool(findings.waits)
    return case.facts.started and (findings.started_pod or spoke)


def _errors_before(case: Case) -> Callable[[Hit], bool]:
    """Tells whether a real error, a wait or a failure of a process stands before a hit."""
    errors = [h for h in case.causes if h.in_traceback and not h.soft and h.signature.outcome not in STOPS]
    first = min((h.order for h in [*errors, *case.hits(Tier.WATCHDOG)]), default=None)
    failed: dict[str, int] = {}
    for end in case.own_failures:
        failed[end.file] = min(end.line, failed.get(end.file, end.line))
    return lambda hit: (first is not None and first < hit.order) or failed.get(hit.file, hit.line) < hit.line
