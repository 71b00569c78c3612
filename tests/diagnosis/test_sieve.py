"""The sieve holds back every line that matters, wherever it stands, and the rest of the text costs little."""

import io
import random
import re

import pytest

from harness.contract.diagnosis import Diagnosis
from harness.diagnosis import Facts, Scanner, diagnose
from harness.diagnosis.anchors import SHORTEST, anchors
from harness.diagnosis.scan import STRUCTURE, sieve
from harness.diagnosis.sieve import Sieve
from harness.diagnosis.signatures import SIGNATURES
from harness.diagnosis.stream import Block
from harness.diagnosis.triage import MOVING_ANCHORS
from tests.diagnosis.replay import Stored, complaints, stored_cases
from tests.diagnosis.test_cases import SINGLE

TEXTS = sorted({a for s in SIGNATURES for a in anchors(s.pattern)} | {*STRUCTURE, *MOVING_ANCHORS})


def noise(size: int, seed: int = 0) -> bytes:
    """Lines of words that never repeat, about `size` bytes."""
    chance = random.Random(seed)
    words = (chance.randbytes(chance.randint(3, 9)).translate(LETTERS) for _ in range(size // 6))
    return b"".join(word + (b"\n" if chance.random() < 0.08 else b" ") for word in words)


LETTERS = bytes(b"bcdghjkmnopquvwxyz"[i % 18] for i in range(256))
"""Without a, e, i, l, r, s and t: no word of it speaks by chance."""
NOISE = noise(5_000_000)


@pytest.mark.parametrize(("pattern", "expected"), [
    (r"Address already in use|EADDRINUSE", {"address already in use", "eaddrinuse"}),
    (r"\bXid \(?.*?\)?: ?(?:48|79)\b", {"xid "}),
    (r"\[Errno (?:28|122)\]", {"[errno "}),
    (r"went (?:nan|NaN)\b", {"went nan"}),
    (r"exit(?:ed)? ?(?:code|status)", {"exit code", "exit status", "exitcode", "exitstatus", "exited code",
                                     "exited status", "exitedcode", "exitedstatus"}),
    (r"(?:rank \d+|oom|nan).{0,9}(?:was )?killed", {"killed"}),
])  # fmt: skip
def test_anchors_of_a_pattern(pattern: str, expected: set[str]) -> None:
    assert anchors(pattern) == expected


@pytest.mark.parametrize("pattern", [r"\d+", r"a|bcdef", r".*", r"(?:long enough)?", r"ab1cd"])
def test_a_pattern_without_anchors_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="in a row without a digit"):
        anchors(pattern)


def test_anchors_are_lower_case_without_digits_and_not_too_short() -> None:
    assert all(text == text.lower() and not re.search(r"\d", text) and len(text) >= SHORTEST for text in TEXTS)


def test_every_text_is_found_at_every_place() -> None:
    sieve_ = sieve()
    chance = random.Random(1)
    for text in TEXTS:
        for before in range(9):
            written = text.upper() if before % 2 else text
            block = chance.randbytes(before).translate(LETTERS) + written.encode() + b"zq" * (before % 3)
            places = sieve_.find(block)
            assert any(before <= place < before + len(text) for place in places), (text, before, places)


def test_two_neighbours_are_both_found() -> None:
    small = Sieve({"loss", "error", "nvidia driver"})
    for text in (b"loss\nloss\nloss\nloss", b"error\nerror\nlosserror", b"nvidia driver\nnvidia driver\nloss"):
        found = {text.count(b"\n", 0, place) for place in small.find(text)}
        assert found == set(range(text.count(b"\n") + 1)), text


def line_of(raw: bytes, place: int) -> int:
    """The line that a place is in; a line break that begins a text is in the next one."""
    return raw.count(b"\n", 0, place + 1)


def test_a_sieve_finds_what_a_plain_search_finds() -> None:
    chance = random.Random(2)
    alphabet = "abeno :/-_[\n9é"
    for _ in range(200):
        texts = {"".join(chance.choices(alphabet[:-2], k=chance.randint(4, 14))).lstrip("\n") for _ in range(5)}
        texts = {"\n" * chance.randint(0, 1) + t.replace("\n", "-") for t in texts if len(t) >= 4} or {"none here"}
        text = "".join(chance.choices([*alphabet, *texts], weights=[9] * len(alphabet) + [1] * len(texts), k=300))
        raw = text.encode()
        lines = {line_of(raw, place) for place in Sieve(texts).find(raw)}
        for wanted in texts:
            for match in re.finditer(re.escape(wanted.encode()), raw):
                assert line_of(raw, match.start()) in lines, (wanted, raw)


def test_no_line_of_any_case_passes_the_sieve_that_a_signature_matches() -> None:
    checked = 0
    for case in stored_cases():
        for path in case.folder.glob("*.txt"):
            for line in path.read_text("utf-8", "replace").splitlines():
                if any(signature.regex.search(line) for signature in SIGNATURES):
                    assert sieve().find(line.encode()), line
                    checked += 1
    assert checked > 300


def look(log: bytes) -> Diagnosis:
    scanner = Scanner()
    scanner.scan(io.BytesIO(log), "log.txt")
    return diagnose(scanner.findings, Facts())


@pytest.mark.parametrize("case", SINGLE[::12], ids=lambda c: c.name)
def test_a_case_far_inside_text_that_never_repeats(case: Stored) -> None:
    log = (case.folder / "log.txt").read_bytes()
    assert complaints(case, look(NOISE + b"\n" + log + b"\n" + NOISE[:100_000])) == []


def test_line_numbers_hold_where_lines_are_skipped() -> None:
    end = (
        b"[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 1, in f\n[rank3]: KeyError: 'x'\n"
    )
    noisy = NOISE.replace(b"\nb", b"\r\nb").replace(b"\nc", b"\rc")
    found = look(noisy + b"\n" + end + NOISE[:50_000])
    assert (found.outcome, found.culprit_rank) == ("python_exception", 3)
    assert found.evidence[0].line == noisy.count(b"\n") + 4


@pytest.mark.parametrize("place", [0, 70_000, 1_000_000 - 30])
def test_an_error_inside_a_long_line_that_never_repeats(place: int) -> None:
    line = noise(1_000_000).replace(b"\n", b" ")
    block = Block(7, b"first\n" + line[:place] + b" CUDA out of memory " + line[place:] + b"\nlast", whole=False)
    starts = sieve().find(block.text)
    found = block.around(starts, 0)
    assert [(n, b"CUDA out of memory" in text) for n, text in zip(found.numbers, found.lines, strict=True)] == [
        (8, True)
    ]
