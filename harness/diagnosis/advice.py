"""What to do next about a diagnosis: the advice that fits its evidence, with the doubt that it carries."""

import re

from harness.contract.outcome import OUTCOMES, Diagnosis
from harness.diagnosis.memory import processes_on_card, read_shortage
from harness.diagnosis.reading.scan import match_line

_SIGKILL = re.compile(r"SIGKILL|Killed|(?:exit ?code|return code)\W*(?:-9|137|247)\b|signal 9", re.I)


def advise(found: Diagnosis) -> str:
    """One or two sentences. A diagnosis of low confidence says that it is a guess, and what would settle it."""
    advice = _fitting(found)
    if found.outcome == "unknown" or found.confidence != "low":
        return advice
    return f"This is a guess. {_settle(found)} If it is right: {_lower(advice)}"


def _fitting(found: Diagnosis) -> str:
    advice = OUTCOMES[found.outcome].advice
    if found.outcome == "unknown" and not found.evidence:
        return f"If the run did fail: {_lower(advice)}"
    for line in found.evidence:
        if found.outcome in ("cuda_oom", "cuda_oom_fragmentation") and processes_on_card(line.text) > 1:
            gpu = read_shortage(line.text).gpu
            card = "one GPU" if gpu is None else f"GPU {gpu}"
            return (
                f"{processes_on_card(line.text)} processes share {card}: start as many as there are GPUs, give each "
                "its own, and end processes that an earlier run left behind."
            )
        said = match_line(line.text)
        if said is not None and said.advice and said.outcome == found.outcome:
            return said.advice
    return advice


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _settle(found: Diagnosis) -> str:
    if found.outcome == "host_oom" and any(_SIGKILL.search(line.text) for line in found.evidence):
        return "Look for the kernel's out-of-memory killer in `dmesg` or the pod's status (OOMKilled)."
    return "Check it against the other ranks' logs before you act on it."
