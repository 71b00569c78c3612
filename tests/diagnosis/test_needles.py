"""The cheap search before the patterns hides no line from them, with ahocorasick_rs and without."""

import io
import random
import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.contract.outcome import Diagnosis
from harness.diagnosis import Facts, Scanner, diagnose
from harness.diagnosis.reading import scan
from harness.diagnosis.reading.scan import SIGNATURES, STRUCTURE
from harness.diagnosis.reading.stream import Block
from harness.diagnosis.reading.triage import Vocabulary, finder, plain_finder, shape_of
from harness.diagnosis.signatures.signature import Signature
from tests.diagnosis.replay import Stored, complaints, stored_cases
from tests.diagnosis.test_cases import SINGLE

pytest.importorskip("ahocorasick_rs")
FINDERS = [finder, plain_finder]
NEEDLES = sorted({n.encode() for s in SIGNATURES for n in s.needles} | {s.encode() for s in STRUCTURE})
LETTERS = bytes(b"bcdghjkmnopquvwxyz"[i % 18] for i in range(256))
"""Without a, e, i, l, r, s and t: no word of it speaks by chance."""


def noise(size: int, seed: int = 0) -> bytes:
    """Lines of words that never repeat, about `size` bytes."""
    chance = random.Random(seed)
    words = (chance.randbytes(chance.randint(3, 9)).translate(LETTERS) for _ in range(size // 6))
    return b"".join(word + (b"\n" if chance.random() < 0.08 else b" ") for word in words)


NOISE = noise(5_000_000)


def lines_of_cases() -> list[str]:
    paths = (path for case in stored_cases() for path in case.folder.glob("*.txt"))
    return [line for path in paths for line in path.read_text("utf-8", "replace").splitlines()]


def holds_needle(signature: Signature, line: str) -> bool:
    shape = shape_of(line.encode("utf-8", "replace"))
    return any(needle.encode() in shape for needle in signature.needles)


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.name)
def test_needles_are_lower_case_without_digits(signature: Signature) -> None:
    assert signature.needles
    assert all(len(n.strip(" '\"()[]:=-!,\t")) >= 3 and shape_of(n.encode()) == n.encode() for n in signature.needles)


def test_every_matching_line_holds_a_needle() -> None:
    checked = 0
    for line in lines_of_cases():
        for signature in SIGNATURES:
            if signature.regex.search(line):
                assert holds_needle(signature, line), (signature.name, line)
                checked += 1
    assert checked > 300


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.name)
def test_every_possible_match_holds_a_needle(signature: Signature) -> None:
    pattern = re.compile(signature.pattern, re.ASCII)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.from_regex(pattern))
    def check(text: str) -> None:
        for line in text.splitlines():
            if signature.regex.search(line):
                assert holds_needle(signature, line), (signature.name, line)

    check()


@pytest.mark.parametrize("seed", range(5))
def test_both_finders_find_the_same(seed: int) -> None:
    chance = random.Random(seed)
    alphabet = [*(bytes([c]) for c in b"abeno :/-_[\n\n"), *NEEDLES]
    text = b"".join(chance.choices(alphabet, k=3000))
    found = [{(which, text.count(b"\n", 0, place)) for which, place in make(NEEDLES)(text)} for make in FINDERS]
    assert found[0] == found[1]


@pytest.mark.parametrize("case", stored_cases(), ids=lambda c: c.name)
def test_both_finders_read_a_case_alike(case: Stored) -> None:
    words = [((n, i) for i, s in enumerate(SIGNATURES) for n in s.needles) for _ in FINDERS]
    both = [Vocabulary(w, STRUCTURE, make) for w, make in zip(words, FINDERS, strict=True)]
    for path in case.folder.glob("*.txt"):
        text = shape_of(path.read_bytes())
        assert list(both[0].telling(text)) == list(both[1].telling(text))


def look(log: bytes) -> Diagnosis:
    scanner = Scanner()
    scanner.scan(io.BytesIO(log), "log.txt")
    return diagnose(scanner.findings, Facts())


@pytest.mark.parametrize("case", SINGLE[::12], ids=lambda c: c.name)
def test_a_case_is_found_in_random_text(case: Stored) -> None:
    log = (case.folder / "log.txt").read_bytes()
    assert complaints(case, look(NOISE + b"\n" + log + b"\n" + NOISE[:100_000])) == []


def test_without_the_matcher_the_diagnosis_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    end = b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    with_matcher = look(NOISE + b"\n" + end)
    monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    scan.vocabulary.cache_clear()
    try:
        assert look(NOISE + b"\n" + end) == with_matcher
    finally:
        scan.vocabulary.cache_clear()


def test_line_numbers_hold_in_text_that_never_repeats() -> None:
    end = (
        b"[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 1, in f\n[rank3]: KeyError: 'x'\n"
    )
    noisy = NOISE.replace(b"\nb", b"\r\nb").replace(b"\nc", b"\rc")
    found = look(noisy + b"\n" + end + NOISE[:50_000])
    assert (found.outcome, found.culprit_rank) == ("python_exception", 3)
    assert found.evidence[0].line == noisy.count(b"\n") + 4


@pytest.mark.parametrize("place", [0, 70_000, 1_000_000 - 30])
def test_an_error_in_a_long_line_is_numbered(place: int) -> None:
    line = noise(1_000_000).replace(b"\n", b" ")
    block = Block(7, b"first\n" + line[:place] + b" CUDA out of memory " + line[place:] + b"\nlast", whole=False)
    found = block.lines()
    holding = [n for n, text in zip(found.numbers, found.lines, strict=True) if b"CUDA out of memory" in text]
    assert set(holding) == {8}
