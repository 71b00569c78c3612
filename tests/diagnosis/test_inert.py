"""Hostile text comes out inert, and a redacted log keeps nothing private but stays diagnosable."""

import html
import io
import json
from html.parser import HTMLParser

import pytest

from harness.diagnosis import Facts, Scanner, diagnose
from harness.diagnosis.cli import as_json, as_text
from harness.diagnosis.inert import for_html, for_markdown, plain
from harness.diagnosis.redact import Redactor
from tests.diagnosis.replay import complaints, stored_cases

HOSTILE = [
    "<script>alert(1)</script>",
    "![x](javascript:alert(1)) [y](http://evil) <img src=x onerror=alert(1)>",
    "| a | b |\n| --- | --- |",
    "\x1b]8;;http://evil\x07click\x1b]8;;\x07 \x1b[2J\x1b[31mred \x9b31m",
    "{{ 7*7 }} {% include 'x' %} ${7*7} `id` $(id)",
    "safe\u202egnp.exe \u200bzero",
    "&lt;b&gt; &#60;",
    "# heading\n> quote\n* item\n1. one\n```sh",
]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", HOSTILE)
def test_html_holds_text_only(text: str) -> None:
    parser = Tags()
    parser.feed(f"<td>{for_html(text)}</td>")
    assert parser.tags == ["td"]
    assert parser.text == plain(text)
    assert not any(mark in for_html(text) for mark in ("{{", "{%", "${"))


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_the_text_and_means_nothing(text: str) -> None:
    escaped = for_markdown(text)
    assert html.unescape(escaped) == plain(text)
    assert not set("<>[]()|`*_{}!$") & set(escaped.replace("&#", "").replace(";", ""))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_terminal_gets_no_controls(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert "\u202e" not in shown and "\u200b" not in shown


def test_evidence_is_inert_on_the_command_line() -> None:
    scanner = Scanner()
    scanner.scan(io.BytesIO("ValueError: \x1b]0;title\x07\x1b[31m<b>\x9b2J\u202e\n".encode()), "a\x1b[1m.log")
    found = diagnose(scanner.findings, Facts(exit_code=1))
    assert found.outcome == "python_exception"
    text = as_text(found) + json.dumps(as_json(found), ensure_ascii=False)
    assert all(c.isprintable() or c == "\n" for c in text)


SECRETS = {
    "token hf_AbCdEfGhIjKlMnOpQrSt": "hf_AbCdEfGhIjKlMnOpQrSt",
    "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567": "0123456789abcdef",
    "Authorization: Bearer abcdef.123456": "abcdef.123456",
    "password = hunter2hunter2": "hunter2",
    "mail to jane.doe@example.com": "jane.doe",
    "connect to 10.12.13.14:29500 failed": "10.12.13.14",
    "addr fe80:1234:5678:9abc:def0:1234:5678:9abc": "9abc",
    "host      : ip-10-1-2-3.us-west-2.compute.internal": "ip-10-1-2-3",
    "gke-train-pool-1-abcd-x1y2 is gone": "x1y2",
    'File "/home/jane/secret-project/train.py", line 3': "jane",
    "saving to /mnt/lab-share/jane/run7/model.pt": "lab-share",
    "https://user:pw@registry.corp.example.com/v2/": "corp.example",
    "gs://acme-private-bucket/x": "acme",
    "srun: error: hal9000: task 3: Killed": "hal9000",
}


@pytest.mark.parametrize(("line", "private"), SECRETS.items())
def test_private_things_are_replaced(line: str, private: str) -> None:
    assert private not in Redactor().line(line)


def test_equal_things_get_equal_stand_ins() -> None:
    redactor = Redactor()
    first, second = redactor.line("from 10.0.0.1 to 10.0.0.2"), redactor.line("10.0.0.2 closed")
    assert first.split()[-1] == second.split()[0]
    assert first.split()[1] != first.split()[-1]


@pytest.mark.parametrize("line", [
    'File "/usr/local/lib/python3.11/site-packages/torch/nn/functional.py", line 100',
    "GPU 1 has a total capacity of 22.03 GiB of which 412.06 MiB is free",
    "https://pytorch.org/docs/stable/elastic/errors.html",
    "2025-03-02T10:11:12.123Z step 3",
])  # fmt: skip
def test_what_the_diagnosis_needs_stays(line: str) -> None:
    assert Redactor().line(line) == line


SINGLE = [c for c in stored_cases() if (c.folder / "log.txt").is_file() and not c.facts and "shape" not in c.name]


@pytest.mark.parametrize("case", SINGLE, ids=lambda c: c.name)
def test_a_redacted_log_is_diagnosed_alike(case) -> None:  # type: ignore[no-untyped-def]
    redactor = Redactor()
    lines = (case.folder / "log.txt").read_text(errors="replace").splitlines(keepends=True)
    scanner = Scanner()
    scanner.scan(io.BytesIO("".join(redactor.line(line) for line in lines).encode()), "log.txt")
    assert complaints(case, diagnose(scanner.findings, Facts())) == []
