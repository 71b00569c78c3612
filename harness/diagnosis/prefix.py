"""Take off what stands before every single line of a small log: a syslog head, a line number, a quote mark."""

import re
from itertools import takewhile

FEWEST_LINES = 3
_LONGEST = 120
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_PADDED = bytes.maketrans(b"123456789 ", b"0" * 10)
_OURS = re.compile(
    rb"\[?\(?(?:rank|default|trainer|worker|loss|step|epoch|iter|pid)|<std|^\[0+(?:,0+)?\]:|^ *0+: |^\{", re.IGNORECASE
)
"""What tells ranks apart, shows progress or is JSON must stay."""
_ENDS = re.compile(rb"[>|\]:][ \t]|\t|^ +$|^(?:[0:.,/-]+ )+| {4}$")


def strip_common(lines: list[bytes]) -> list[bytes]:
    """The lines without a prefix that all of them share, digits aside; the same list when there is none."""
    filled = [line[:_LONGEST] for line in lines if line.strip()]
    if len(filled) < FEWEST_LINES:
        return lines
    length = max(_shared(filled, _DIGITS), _shared(filled, _PADDED))
    return [line[length:] for line in lines] if length else lines


def _shared(lines: list[bytes], digits: bytes) -> int:
    shapes = [line.translate(digits) for line in lines]
    # What the first and the last in order share, all share.
    pairs = zip(min(shapes), max(shapes), strict=False)
    prefix = min(shapes)[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))]
    if ours := _OURS.search(prefix):
        prefix = prefix[: ours.start()]
    # Only up to the last mark that can end a prefix: a word that all lines begin with is text.
    ends = [m.end() for m in _ENDS.finditer(prefix)]
    return ends[-1] if ends else 0
