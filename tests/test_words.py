"""One noun per concept (docs/glossary.md): dropped nouns do not come back; test names stay short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DROPPED = {
    "goal": r"\b[gG]oals?\b",
    "climb": r"\b[cC]limb(s|er|ed|ing)?\b",
    "bracket": r"\b[bB]racket\b",
    "how-manieth": r"\bhow-manieth\b",
}
"""Dropped noun -> pattern; `ladder`, `rung` and `probe` replace the first three. Text in brackets stays allowed."""
KINDS = {".py", ".smk", ".md", ".yaml", ".j2", ".json"}
TOPS = ("harness", "workflow", "docs", "config", "profiles", "Snakefile", "README.md", "CONTRIBUTING.md")
ALLOWED = {("bracket", "harness/diagnosis/reading/text.py")}
"""The log line's prefix in brackets is one; the rule still has its old name."""


@pytest.mark.parametrize("noun", DROPPED)
def test_dropped_nouns_stay_away(noun: str) -> None:
    found = []
    for top in TOPS:
        place = ROOT / top
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            name = path.relative_to(ROOT).as_posix()
            if (path.suffix in KINDS or top == "Snakefile") and path.is_file() and (noun, name) not in ALLOWED:
                lines = path.read_text(encoding="utf-8").splitlines()
                found += [f"{name}:{n}" for n, line in enumerate(lines, 1) if re.search(DROPPED[noun], line)]
    assert not found, f"say it in the words of docs/glossary.md: {', '.join(found)}"


def test_each_word_of_the_glossary_stands_once() -> None:
    words = re.findall(r"^\| ([\w-]+) \|", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(words) == len(set(words)) > 25


def test_a_test_name_has_at_most_eight_words() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in re.findall(r"^\s*(?:async )?def test_(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if len(name.split("_")) > 8
    ]
    assert not long, f"say what must hold in at most eight words: {', '.join(long)}"
