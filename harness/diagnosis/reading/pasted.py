"""Undo what tools do to a small log: one prefix before every line, and a terminal's hard wrap."""

import re
from collections.abc import Sequence
from itertools import takewhile

FEWEST_LINES = 3
_LONGEST_PREFIX = 120
_AS_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_PADDED_AS_ZERO = bytes.maketrans(b"123456789 ", b"0" * 10)
_OURS = re.compile(
    rb"\[?\(?(?:rank|default|trainer|worker|loss|step|epoch|iter|pid)|<std|^\[0+(?:,0+)?\]:|^ *0+: |^\{", re.IGNORECASE
)
"""Text that tells ranks apart, shows progress or is JSON must stay."""
_ENDS = re.compile(rb"[>|\]:][ \t]|\t|^ +$|^(?:[0:.,/-]+ )+| {4}$")

NARROWEST, WIDEST = 40, 400
USUAL = frozenset({72, 76, 78, 79, 80, 100, 120, 132, 140, 160, 180, 200, 240})
"""Usual widths of terminals, where one broken word is proof enough."""
_NEW_LINE = re.compile(
    rb"^(?:\[|\d{4}-\d\d-\d\d|[WEIF]\d{4} |\s*File \"|\s*\[?[Rr]ank|Traceback|\d+: |\(\w+ pid=|\s{4}"
    rb"|=====|-----|frame #|[A-Z][\w ()=]{2,40}: +\d+%\|)"
)
_WORD = re.compile(rb"\w")


def strip_common(lines: list[bytes]) -> list[bytes]:
    """The lines without a prefix that all of them share, digits aside; the same list when there is none."""
    filled = [line[:_LONGEST_PREFIX] for line in lines if line.strip()]
    if len(filled) < FEWEST_LINES:
        return lines
    length = max(_shared(filled, _AS_ZERO), _shared(filled, _PADDED_AS_ZERO))
    return [line[length:] for line in lines] if length else lines


def _shared(lines: list[bytes], digits: bytes) -> int:
    shapes = [line.translate(digits) for line in lines]
    # A prefix that the first and the last line in order share is shared by all.
    pairs = zip(min(shapes), max(shapes), strict=False)
    prefix = min(shapes)[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))]
    if ours := _OURS.search(prefix):
        prefix = prefix[: ours.start()]
    # Cut at the last character that can end a prefix, because a word that all lines begin with is text.
    ends = [m.end() for m in _ENDS.finditer(prefix)]
    return ends[-1] if ends else 0


def unwrap(numbers: Sequence[int], lines: list[bytes]) -> tuple[Sequence[int], list[bytes]]:
    """Join lines that a terminal of one width broke; a joined line keeps the number of its first part."""
    width = wrap_width(lines)
    if width is None:
        return numbers, lines
    out_numbers: list[int] = []
    out: list[bytes] = []
    joining = False
    for number, line in zip(numbers, lines, strict=True):
        if joining and not _starts_anew(line):
            out[-1] += line
        else:
            out_numbers.append(number)
            out.append(line)
        joining = len(line) == width
    return out_numbers, out


def wrap_width(lines: list[bytes]) -> int | None:
    """The width at which the text was broken, or None when it does not look broken."""
    width = max(map(len, lines), default=0)
    if not NARROWEST <= width <= WIDEST:
        return None
    full = {lines[i]: lines[i + 1] for i in range(len(lines) - 1) if len(lines[i]) == width}
    goes_on = [(a, b) for a, b in full.items() if not _starts_anew(b) and a[:4] != b[:4]]
    split_words = sum(1 for a, b in goes_on if _WORD.match(a[-1:]) and _WORD.match(b))
    many = split_words >= 2 and split_words * 3 >= len(full)
    continued = split_words or any(a[-1:] == b" " or b[:1] == b" " != b[1:2] for a, b in goes_on)
    usual = width in USUAL and continued and len(goes_on) == len(full)
    return width if full and (many or usual) else None


def _starts_anew(line: bytes) -> bool:
    return bool(_NEW_LINE.match(line)) or not line
