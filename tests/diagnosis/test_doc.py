"""docs/outcomes.md says what the code does."""

from pathlib import Path

from harness.contract.outcome import OUTCOMES
from harness.diagnosis.doc import document
from harness.diagnosis.signatures import SIGNATURES

PAGE = Path(__file__).parents[2] / "docs" / "outcomes.md"


def test_outcomes_page_is_what_the_code_writes() -> None:
    assert PAGE.read_text() == document(), "run: python -m harness.diagnosis.doc > docs/outcomes.md"


def test_page_names_every_outcome_and_signature() -> None:
    page = document()
    assert all(f"\n## {name}\n" in page for name in OUTCOMES)
    assert all(f"| {s.name} |" in page for s in SIGNATURES if s.name != "fault-announced")
