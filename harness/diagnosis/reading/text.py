"""From a raw line to (rank, text): strip what collectors, launchers and terminals put around a message.

A small log was often pasted: all its lines share a prefix, or a terminal broke them at its width. That is undone first.
"""

import json
import re
from collections.abc import Sequence
from itertools import takewhile

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
# What a collector puts before the line itself: a time, CRI's stream flag, a compose service, a pod path.
_COLLECTOR = re.compile(
    rf"^(?:\[?{_STAMP}\]?[ \t](?:std(?:out|err) [FP] )?"
    r"|std(?:out|err): ?"
    r"|[\w.-]+(?:-\d+)?\s+\| ?"
    r"|\[pod/[^\]]+\] ?)"
)
_RANKS = re.compile(
    r"^(?:\[(?:rank|default|trainer|worker)?(?P<bracket>\d{1,6})\](?:<std(?:err|out)>)?:\s?"
    r"|\[\d+,(?P<mpi>\d+)\](?:<std(?:err|out)>)?:\s?"
    r"|\w{3} \w{3} +\d+ [\d:]+ \d{4}\[(?P<horovod>\d+)\]<std(?:err|out)>:\s?"
    r"|\[rank: (?P<lightning>\d+)\] "
    r"|rank(?P<word>\d{1,6}): ?"
    r"|\s{0,5}(?P<srun>\d{1,6}): (?=\S|\s)"
    r"|\((?:[A-Z]\w+|pid|\w*[Ww]orker\w*)[^)]*?\bpid=(?P<pid>\d+)[^)]*\)\s?"
    r"|\[R(?:ank )?(?P<R>\d{1,6})\]:?\s(?=Traceback|\s+File|\w*Error))"
)
_HOST = re.compile(
    r"^(?=[\w.-]*[\d-])[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)*: ?"
    r"(?=\[|Traceback|\s+File|[WEIF]\d{4} |\w+(?:\.\w+)*(?:Error|Exception)\b)"
)
_NAMED = re.compile(r"\[(?:PG [^\]]*? )?[Rr]ank (\d+)\]|\bon rank (\d+)\b|\b[Rr]ank (\d+):")


def decode(raw: bytes) -> str:
    """Bytes of one line as text without NULs and terminal codes; bad UTF-8 becomes U+FFFD."""
    text = raw.decode("utf-8", "replace").replace("\0", "")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.rstrip()


def printable(text: str) -> str:
    """The text without any control character."""
    return _CONTROL.sub("", _ANSI.sub("", text))


def normalise(text: str) -> tuple[int | None, str | None, str]:
    """(rank, worker, text): all collector and rank prefixes stripped; the rank is the innermost one.

    `worker` identifies processes whose prefix has no rank, for example by pid under Ray.
    """
    rank: int | None = None
    worker: str | None = None
    for _ in range(6):
        if text.startswith("{"):
            text = _unwrap_json(text)
        if match := _RANKS.match(text):
            found = next((v for k, v in match.groupdict().items() if v is not None and k != "pid"), None)
            rank = int(found) if found is not None else rank
            worker = match["pid"] or worker
        else:
            match = _COLLECTOR.match(text) or _HOST.match(text)
        if not match:
            break
        text = text[match.end() :]
    return rank, worker, text


def named_rank(text: str) -> int | None:
    """The rank a message names itself: `[Rank 3]`, `on rank 3`."""
    match = _NAMED.search(text)
    return int(next(g for g in match.groups() if g is not None)) if match else None


def _unwrap_json(text: str) -> str:
    """The message inside a JSON log line (docker, Cloud Logging, structured loggers); else the text."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(fields, dict):
        for key in ("log", "textPayload", "message", "msg"):
            if isinstance(fields.get(key), str):
                return str(fields[key]).rstrip()
    return text


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
