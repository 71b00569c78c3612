"""`python -m harness.diagnosis.doc > docs/outcomes.md`: the table of outcomes and signatures, from the code."""

import re

from harness.contract.outcome import OUTCOMES, REMEDIES, Outcome
from harness.diagnosis.judging.case import SURVIVED_BY
from harness.diagnosis.judging.wording import SIGNALS
from harness.diagnosis.memory import FRAGMENTED_SHARE, NEAR_FULL_SHARE, NEAR_LINE_SHARE
from harness.diagnosis.reading.tracebacks import CONFIG, DATA, GENERIC, INOTIFY, SHM, VAGUE
from harness.diagnosis.signatures import SIGNATURES
from harness.diagnosis.signatures.signature import Signature, Tier

_TIERS = {
    Tier.BENIGN: "looks like a failure, but is none",
    Tier.VERDICT: "the cluster, the kernel or the scheduler says what it did",
    Tier.COMPLETE: "the run says that it finished",
    Tier.CAUSE: "a real error of a rank",
    Tier.HINT: "an error that another one often causes",
    Tier.WATCHDOG: "a rank waited too long for the others",
    Tier.MESSENGER: "a rank lost its connection to another",
}


def document() -> str:
    """The whole page as Markdown."""
    parts = [_head(), *(_outcome(o) for o in OUTCOMES.values()), _tables()]
    return "\n".join(parts)


def _head() -> str:
    return f"""# Outcomes

Made by `python -m harness.diagnosis.doc`; do not edit by hand (`tests/diagnosis/test_doc.py` holds it fresh).

A diagnosis names an outcome from this list, a confidence, the rank that failed first, the evidence (file and line) and
the second most likely outcome. Evidence is trusted in this order:

1. What the supervisor itself knows: every result is there, or it ended the run for a stated reason.
2. Pod conditions, container states and events, or a log that quotes them.
3. A line in which the run or its launcher says that it finished.
4. The earliest real error of any rank.
5. Watchdogs, flight-recorder dumps and heartbeats: they show which rank never joined which collective.
6. A fatal signal that no error message explains.
7. Errors that are usually the consequence of another one.
8. The exit code.

`unknown` is better than a guess. A diagnosis of low confidence says that it is a guess, also in its advice. The same
errno can mean different things: "Cannot allocate memory" from `ibv_reg_mr` is the limit of locked memory, and "No space
left on device" from a semaphore is /dev/shm. A timeout is never the cause: the rank that waited did nothing wrong.

The run survived an error if training went on for at least {SURVIVED_BY} progress lines after it (or three lines per
rank, if that is more). A traceback before the first progress line is never called survived.

The outcome is `cuda_oom_fragmentation` if the reserved but unallocated memory is at least the request and at least
{FRAGMENTED_SHARE:.0%} of the card. The remedy is also tried after a `cuda_oom` whose free and unallocated memory
together would have held the request. A device counts as full with less than {NEAR_FULL_SHARE:.0%} free. With less
than {NEAR_LINE_SHARE:.0%} free, a wedge names `wedge_masking_oom` as its second most likely outcome.

To add a signature, write one entry in `harness/diagnosis/signatures/` and one case in `tests/diagnosis/cases/`. An
entry has *needles*: short texts in lower case without digits. Every line that the pattern matches holds one of them,
which a test checks. A case is a folder with the log, `expected.json`, and `facts.json` if there is more than the log.
`python -m harness diagnose --redact LOG` takes private text out of a log. A new outcome is one entry in
`harness/contract/outcome.py`.

| outcome | fault | retry helps | remedy | sentence |
| --- | --- | --- | --- | --- |
""" + "\n".join(
        f"| [`{o.name}`](#{o.name}) | {o.blame} | {_yes(o.retry_helps)} | {o.remedy or ''} | {o.sentence} |"
        for o in OUTCOMES.values()
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _outcome(known: Outcome) -> str:
    lines = [f"\n## {known.name}\n", f"{known.sentence} {known.advice}", ""]
    lines.append(f"Fault: {known.blame}. A retry {'can help' if known.retry_helps else 'does not help'}.")
    if known.remedy:
        remedy = REMEDIES[known.remedy]
        variables = ", ".join(f"`{k}={v}`" for k, v in remedy.environment.items())
        lines.append(f"Remedy `{remedy.name}`: {variables}; {remedy.why}.")
    rows = [
        _row(s)
        for s in (*SIGNATURES, GENERIC, VAGUE, CONFIG, DATA, SHM, INOTIFY)
        if s.outcome == known.name and s.tier is not Tier.BENIGN
    ]
    exits = [(code, e) for code, e in SIGNALS.items() if e[0] == known.name]
    signals = [f"| {what} | exit | {confidence} | `{code}` |" for code, (_, confidence, what) in exits]
    if (rows or signals) and known.name != "unknown":
        lines += ["", "| signature | what it is | confidence | pattern |", "| --- | --- | --- | --- |", *rows, *signals]
    return "\n".join(lines)


def _tables() -> str:
    lines = [
        "\n## Lines that are no cause\n",
        "| signature | what it is | confidence | pattern |",
        "| --- | --- | --- | --- |",
    ]
    lines += [_row(s) for s in SIGNATURES if s.outcome == "unknown"]
    return "\n".join(lines) + "\n"


def _row(signature: Signature) -> str:
    pattern = re.sub(r"[|&<>`]", lambda m: f"&#{ord(m[0])};", signature.pattern)
    return f"| {signature.name} | {_TIERS[signature.tier]} | {signature.confidence} | <code>{pattern}</code> |"


if __name__ == "__main__":
    print(document(), end="")
