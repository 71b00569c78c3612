"""docs/gke.md holds the flags as they are; run this file as a module to write them."""

import re
from dataclasses import fields
from pathlib import Path

from snakemake_executor_plugin_gke.settings import ExecutorSettings

DOC = Path(__file__).resolve().parents[2] / "docs" / "gke.md"
START, END = "<!-- flags: written by tests/gke/test_docs.py -->\n", "<!-- /flags -->"


def flags() -> str:
    """The table of flags, from the settings themselves."""
    rows = ["| flag | default | what it does |", "| --- | --- | --- |"]
    for field in fields(ExecutorSettings):
        default = f"`{field.default}`" if field.default not in ("", False) else ""
        rows.append(f"| `--gke-{field.name.replace('_', '-')}` | {default} | {field.metadata['help']} |")
    return "\n" + "\n".join(rows) + "\n\n"


def with_flags(text: str) -> str:
    """The page with its table of flags made anew."""
    before, _, rest = text.partition(START)
    return before + START + flags() + END + rest.partition(END)[2]


def test_every_flag_is_documented_as_it_is():
    text = DOC.read_text()
    assert text == with_flags(text), "run: python -m tests.gke.test_docs"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", DOC.read_text()):
        assert (DOC.parent / target).exists(), target


if __name__ == "__main__":
    DOC.write_text(with_flags(DOC.read_text()))
