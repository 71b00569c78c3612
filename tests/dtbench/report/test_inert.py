"""Text from logs and sources in the report: shown as it was, and never acting as markup."""

import html.parser
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import write_report
from dtbench.report.render import markdown
from dtbench.study.matrix import Matrix

from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]

HOSTILE = (
    "<script>alert(1)</script> ![x](http://evil/y.png) | **b** `c` {{ 7*7 }} {% raw %} \x1b[31mred\x07 [a](b) @x #1"
)


class Page(html.parser.HTMLParser):
    """Collects tags, and refuses what an HTML parser would not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"handler {name}"
            assert name not in ("src", "href") or (value or "").startswith("#"), f"{name}={value}: not self-contained"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def hostile(tmp_path: Path, study: Load) -> Path:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), outcome="python_exception", evidence=HOSTILE))
    write_report(matrix, tmp_path)
    return tmp_path


def test_hostile_text_is_inert_in_markdown(hostile: Path) -> None:
    (row,) = [line for line in (hostile / "report.md").read_text().splitlines() if "alert" in line]
    assert row.count("|") == 11
    for mark in ("<script", "![", "](", "**b", "`c`", "{{", "{%", "\x1b", "\x07", "http://", "@x", " #1"):
        assert mark not in row, mark


def test_hostile_text_is_inert_in_html(hostile: Path) -> None:
    text = (hostile / "report.html").read_text()
    page = Page()
    page.feed(text)
    # The page's own, which alone its policy lets run.
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert "\x1b" not in text
    assert "{{" not in text
    assert page.tags.count("svg") == 2
    assert "<script>alert(1)</script>" in "".join(page.text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("11.50 GiB asked, 9.48 free", "11.50 GiB asked, 9.48 free"),
        ("exit code -6: rank_0 died", "exit code -6: rank_0 died"),
        ("1. item", "1&#46; item"),
        ("- item", "&#45; item"),
        ("www.evil.example", "www\\.evil.example"),
        ("http://evil", "http\\://evil"),
        (":100: :tada: a:b", "&#58;100\\: \\:tada\\: a\\:b"),
        ("_x_ *y* a|b", "&#95;x&#95; &#42;y&#42; a&#124;b"),
    ],
)
def test_markdown_stays_readable_where_it_is_harmless(text: str, shown: str) -> None:
    assert markdown(text) == shown
