"""From a raw line to (rank, text): strip what collectors, launchers and terminals put around a message."""

import json
import re

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
