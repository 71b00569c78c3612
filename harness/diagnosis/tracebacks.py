"""Follow Python tracebacks per rank, so that their last line is known for what it is."""

import re
from dataclasses import dataclass

from harness.diagnosis.signature import Signature, Tier, entry

GENERIC = entry(Tier.CAUSE, "python_exception", "python-exception", "error", r"$^", "high")
LAUNCHERS = entry(Tier.MESSENGER, "unknown", "launcher-exception", "error", r"$^")
DATA = entry(Tier.CAUSE, "data_error", "data-frames", "error", r"$^", "medium")

_START = re.compile(r"^\s*(?:\+ )?Traceback \(most recent call last\):")
_FRAME = re.compile(r'^\s*(?:\| )?File "(?P<file>[^"]*)", line \d+')
_CHAIN = re.compile(r"During handling of the above exception|direct cause of the following exception")
_EXCEPTION = re.compile(r"^(?:\s{0,2}\| )?(?P<name>[A-Za-z_][\w.]*)(?::\s|:$|$)")
_TYPED = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Fault|StopIteration|Timeout))(?::\s|:$|$)"
)
_LAUNCHER = re.compile(
    r"ChildFailedError|SignalException|CalledProcessError|ProcessExitedException|ProcessRaisedException|SystemExit"
)
_DATA_FRAME = re.compile(
    r"(?:/datasets?/|dataloader|/data/|_?dataset\w*\.py|torch/utils/data|data_collator|collat\w+\.py)", re.I
)


@dataclass(slots=True)
class Ended:
    """A line that ends a traceback, or looks like the end of one."""

    name: str
    signature: Signature
    ignored: bool


@dataclass(slots=True)
class _Open:
    frames: int = 0
    data: bool = False
    ignored: bool = False


class Tracebacks:
    """State of one file, per rank."""

    def __init__(self) -> None:
        self._open: dict[int | None, _Open] = {}
        self._chained: set[int | None] = set()
        self._ignore_next: set[int | None] = set()

    def feed(self, rank: int | None, text: str) -> Ended | None:
        """Take one normalised line; returns what ended if it ends a traceback."""
        if _START.match(text):
            self._open[rank] = _Open(ignored=rank in self._ignore_next)
            self._ignore_next.discard(rank)
            return None
        if _CHAIN.search(text):
            self._chained.add(rank)
            return None
        if text.startswith("Exception ignored in"):
            self._ignore_next.add(rank)
            return None
        state = self._open.get(rank)
        if state is None:
            match = _TYPED.match(text)
            return self._end(match["name"], None) if match else None
        if frame := _FRAME.match(text):
            state.frames += 1
            state.data = state.data or bool(_DATA_FRAME.search(frame["file"]))
            return None
        match = _EXCEPTION.match(text)
        if state.frames and match:
            del self._open[rank]
            return self._end(match["name"], state)
        return None

    def chained(self, rank: int | None) -> bool:
        """Whether the exception that just ended continues a chain; asks once."""
        if rank in self._chained and rank not in self._open:
            self._chained.discard(rank)
            return True
        return False

    @staticmethod
    def _end(name: str, state: _Open | None) -> Ended:
        ignored = state.ignored if state else False
        if _LAUNCHER.search(name):
            return Ended(name, LAUNCHERS, ignored)
        return Ended(name, GENERIC, ignored)
