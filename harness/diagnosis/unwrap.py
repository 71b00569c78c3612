"""Undo a terminal's hard wrap: text pasted from a narrow window, words split in the middle."""

import re
from collections.abc import Sequence

NARROWEST, WIDEST = 40, 400
USUAL = frozenset({72, 76, 78, 79, 80, 100, 120, 132, 140, 160, 180, 200, 240})
"""Widths of terminals: here one broken word is enough."""
_NEW_LINE = re.compile(
    rb"^(?:\[|\d{4}-\d\d-\d\d|[WEIF]\d{4} |\s*File \"|\s*\[?[Rr]ank|Traceback|\d+: |\(\w+ pid=|\s{4}"
    rb"|=====|-----|frame #)"
)


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
    split_words = sum(1 for a, b in goes_on if a[-1:].isalnum() and b[:1].isalnum())
    many = split_words >= 2 and split_words * 3 >= len(full)
    continued = split_words or any(a[-1:] == b" " or b[:1] == b" " != b[1:2] for a, b in goes_on)
    usual = width in USUAL and continued and len(goes_on) == len(full)
    return width if full and (many or usual) else None


def _starts_anew(line: bytes) -> bool:
    return bool(_NEW_LINE.match(line)) or not line
