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
    Tier.BENIGN: "looks like a death and is none",
    Tier.VERDICT: "the cluster, the kernel or the scheduler says what it did",
    Tier.COMPLETE: "the run says that it finished",
    Tier.CAUSE: "a real error of a rank",
    Tier.HINT: "an error that often has another one behind it",
    Tier.WATCHDOG: "a rank waited for the others too long",
    Tier.MESSENGER: "a rank saw that a peer was gone",
}


def document() -> str:
    """The whole page as Markdown."""
    parts = [_head(), *(_outcome(o) for o in OUTCOMES.values()), _tables()]
    return "\n".join(parts)


def _head() -> str:
    return f"""# Outcomes

Made by `python -m harness.diagnosis.doc`; do not edit by hand (`tests/diagnosis/test_doc.py` holds it fresh).

A diagnosis is an outcome of this list, a confidence, the culprit rank, evidence with file and line, and the
runner-up. Evidence is trusted in this order:

1. What the supervisor itself knows: every result is there, or it ended the run (and why).
2. Pod conditions, container states and events; the same statements as text.
3. The run's own word, or its launcher's, that it finished.
4. The earliest real error of any rank.
5. Watchdogs, flight-recorder dumps and heartbeats: who never joined which collective.
6. A fatal signal without a word.
7. Errors that usually have another one behind them.
8. The exit code.

`unknown` beats a guess, and a diagnosis of low confidence calls itself one, in its advice too. Who reports decides what
an errno means: "Cannot allocate memory" from `ibv_reg_mr` is the limit of locked memory, and "No space left on device"
from a semaphore is /dev/shm. A timeout is not a death: the rank that waited is never the culprit.

An error counts as survived when training went on for at least {SURVIVED_BY} progress lines after it (three times the
ranks, if that is more); a traceback must also have had some before it. Fragmentation
needs reserved-but-unallocated memory of at least the request and of {FRAGMENTED_SHARE:.0%} of the card; a
`cuda_oom` whose free and unallocated memory together would have held the request gets the same remedy all the
same. A device counts as full below {NEAR_FULL_SHARE:.0%} free; below {NEAR_LINE_SHARE:.0%} a wedge names
`wedge_masking_oom` as runner-up.

To add a signature, write one entry in `harness/diagnosis/signatures/` (its needles are texts of which every
matching line holds one, in lower case without digits; tests check them against the pattern) and one case in
`tests/diagnosis/cases/`: a folder with the log (`python -m harness diagnose --redact LOG` takes private things out),
`expected.json` and, if there is more than the log, `facts.json`. A new outcome is one entry more, in
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
        "\n## What is no cause\n",
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
