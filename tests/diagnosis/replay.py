"""Run one stored case: a folder with logs, optional facts.json and expected.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.contract.heartbeat import RankExit
from harness.contract.outcome import Diagnosis
from harness.diagnosis import Source, diagnose_folder, diagnose_source

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Stored:
    """What a case's folder holds."""

    name: str
    folder: Path
    facts: dict[str, Any]
    expected: dict[str, Any]


def stored_cases() -> list[Stored]:
    """Every case, by name."""
    return [load(path.parent) for path in sorted(CASES.glob("*/expected.json"))]


def load(folder: Path) -> Stored:
    """Read one case."""
    facts = folder / "facts.json"
    return Stored(
        name=folder.name,
        folder=folder,
        facts=json.loads(facts.read_text()) if facts.is_file() else {},
        expected=json.loads((folder / "expected.json").read_text()),
    )


def replay(case: Stored) -> Diagnosis:
    """Diagnose the case: a single log as the command line would, several files as a folder."""
    facts = dict(case.facts)
    logs = [p for p in case.folder.iterdir() if p.name.startswith("log.")]
    if logs:
        return diagnose_source(Source(path=logs[0], **facts))
    exits = [RankExit(**e) for e in facts.pop("exits", [])]
    if (case.folder / "launcher.log").is_file():
        return diagnose_folder(case.folder, exits=exits, **facts)
    return diagnose_source(Source(path=case.folder, **facts))


def complaints(case: Stored, found: Diagnosis) -> list[str]:
    """What is wrong with a diagnosis, in words; empty when nothing is."""
    expected, wrong = case.expected, []
    if found.outcome != expected["outcome"]:
        wrong.append(f"outcome {found.outcome} ({found.confidence}), expected {expected['outcome']}: {found.sentence}")
    if "culprit_rank" in expected and found.culprit_rank != expected["culprit_rank"]:
        wrong.append(f"culprit {found.culprit_rank}, expected {expected['culprit_rank']}")
    if "evidence" in expected and not any(expected["evidence"] in e.text for e in found.evidence):
        wrong.append(f"no evidence holds {expected['evidence']!r}: {[e.text for e in found.evidence]}")
    if "confidence" in expected and found.confidence not in expected["confidence"]:
        wrong.append(f"confidence {found.confidence}, expected one of {expected['confidence']}")
    return wrong
