"""The cheap tests before a pattern never hide a line from it."""

import re

import pytest

from harness.diagnosis.needles import SHORTEST, needles
from harness.diagnosis.scan import vocabulary
from harness.diagnosis.signatures import SIGNATURES
from tests.diagnosis.replay import stored_cases


@pytest.mark.parametrize(("pattern", "expected"), [
    (r"Address already in use|EADDRINUSE", ("address already in use", "eaddrinuse")),
    (r"\bXid \(?.*?\)?: ?(?:48|79)\b", ("xid ",)),
    (r"[Oo]ut of memory", ("out of memory",)),
    (r"Errno 28\]", ("errno ]",)),
    (r"(?:CUDA|HIP) error: x", (" error: x",)),
    (r"loss is (?:nan|not finite)", ("loss is n",)),
    (r"(?:maybe )?required", ("required",)),
])  # fmt: skip
def test_needles_of_a_pattern(pattern: str, expected: tuple[str, ...]) -> None:
    found = needles(pattern)
    assert set(found) == set(expected)
    assert all(len(n.strip()) >= SHORTEST for n in found)


@pytest.mark.parametrize("pattern", [r"\d+", r"a|bcdef", r".*", r"(?:long enough)?"])
def test_a_pattern_without_literals_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="literal characters"):
        needles(pattern)


def test_no_line_of_any_case_is_hidden_from_a_signature_that_matches_it() -> None:
    """Every signature that matches a line of a case is among the candidates of its shape."""
    words = vocabulary()
    checked = 0
    for case in stored_cases():
        for path in case.folder.glob("*.txt"):
            for line in path.read_text("utf-8", "replace").splitlines():
                shape = re.sub(r"[\d\0]", "", line.lower()).encode("utf-8", "replace").lower()
                offered = dict(words.telling({shape})).get(shape) or ()
                for index, signature in enumerate(SIGNATURES):
                    if signature.regex.search(line) and "NCCL INFO" not in line:
                        assert index in offered, (signature.name, line)
                        checked += 1
    assert checked > 300
