"""Follow Python tracebacks per process, to recognise the line that ends each."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from harness.diagnosis.signatures.signature import Signature, Tier, entry

GENERIC = entry(Tier.CAUSE, "python_exception", "python-exception", r"Traceback \(most recent call last\):")
LAUNCHERS = entry(
    Tier.MESSENGER, "unknown", "launcher-exception", r"ChildFailedError|CalledProcessError|ActorDiedError"
)
VAGUE = entry(Tier.CAUSE, "python_exception", "runtime-error", r"Traceback \(most recent call last\):", "medium")
CONFIG = entry(Tier.CAUSE, "config_error", "config-frames", r"deepspeed/runtime/config", "medium")
DATA = entry(Tier.CAUSE, "data_error", "data-frames", r"torch/utils/data/", "medium")
SHM = entry(Tier.CAUSE, "shm_exhausted", "shm-frames", r"multiprocessing/(?:synchronize|heap|shared_memory)\.py$")
"""Semaphores and shared arrays live in /dev/shm: an errno raised here is about it, not about a disk or host memory."""
PARENT_GONE = entry(Tier.MESSENGER, "unknown", "parent-gone", r"multiprocessing/(?:spawn|forkserver)\.py$")
"""A spawned child could not read what its parent failed to send: the parent's error is the cause."""
INOTIFY = entry(Tier.CAUSE, "python_exception", "inotify-frames", r"inotify[^/]*(?:/[^/]+)?\.py$")

_HEADER = "Traceback (most recent call last):"
_HARMLESS = ("Exception ignored in", "Error in atexit._run_exitfuncs", "--- Logging error ---")
"""Python prints one of these before the traceback of an exception that ends no process."""
_FRAME = re.compile(r'^[\s|>]*File "(?P<file>[^"]*)", line \d+')
_CHAIN = re.compile(r"During handling of the above exception|direct cause of the following exception")
_EXCEPTION = re.compile(r"^(?:\s{0,2}\| )?(?P<name>[A-Za-z_][\w.]*(?:\([A-Z]\w+\))?)(?::\s|:$|$)")
_TYPED = re.compile(
    r"^ {0,4}(?:\| )?(?P<name>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Fault|Timeout)"
    r"|StopIteration)(?:\([A-Z]\w+\))?)(?::\s|:$|$)"
)
_ERROR_FILE = re.compile(r'^\s*"message": "(?P<name>[A-Z]\w*(?:Error|Exception))[:(]')
_LAUNCHER = re.compile(
    r"ChildFailedError|SignalException|CalledProcessError|ProcessExitedException|ProcessRaisedException|SystemExit"
    r"|RayTaskError|RayActorError|ActorDiedError|TrainingFailedError|TuneError"
)
_SPAWNED = re.compile(r"-- Process (?P<rank>\d+) terminated with the following error")
_DATA_FRAME = re.compile(
    r"(?:^|/)(?:datasets?|data|dataloaders?|collat\w+)(?:/|\w*\.py$)|torch/utils/data/|data_collator", re.I
)
_CONFIG_FRAME = re.compile(
    r"deepspeed/runtime/(?:zero/)?(?:\w*config\w*|engine)\.py$|transformers/training_args\.py$|accelerate/utils/dataclasses"
    r"|/(?:hydra|omegaconf)/|harness/contract/"
)
_REFUSALS = ("AssertionError", "ValueError", "SpecError", "TypeError", "ZeRORuntimeException")
_OWN_CODE = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen|<string>")


Speaker: TypeAlias = int | str | None
"""The writer of a line: a rank, a worker by its pid, or unknown."""


@dataclass(slots=True)
class Ended:
    """A line that ends a traceback or looks like it."""

    name: str
    signature: Signature
    ignored: bool
    """Raised in a destructor, at exit or by a logger, so it ended no process."""
    rank: int | None
    """The process that the launcher names just before the traceback."""
    frame: str
    """File of the innermost frame: who raised. Empty when no frame was seen."""

    def reread(self, signature: Signature) -> Signature:
        """The meaning of a message given the file that raised it; the text of an errno alone is ambiguous."""
        if self.name.endswith(("EOFError", "UnpicklingError")) and PARENT_GONE.regex.search(self.frame):
            return PARENT_GONE
        if signature.outcome in ("disk_full", "host_oom"):
            return next((s for s in (SHM, INOTIFY) if s.regex.search(self.frame)), signature)
        return signature


@dataclass(slots=True)
class _Open:
    frames: int = 0
    data: bool = False
    file: str = ""
    """File of the last frame."""
    ignored: bool = False
    prefix: str = ""
    """The logger's prefix before every line of the traceback, digits as 0."""


class Tracebacks:
    """State of one file, per speaker."""

    def __init__(self) -> None:
        self._open: dict[Speaker, _Open] = {}
        self._chained: set[Speaker] = set()
        self._ignore_next: set[Speaker] = set()
        self._spawned: int | None = None

    def strip(self, speaker: Speaker, text: str) -> str:
        """Take off a logger's prefix that stands before every line of a traceback."""
        at = text.find(_HEADER)
        if at > 0 and text[:at].strip(" |+"):
            self._open[speaker] = _Open(prefix=_shape(text[:at]))
            return text[at:]
        state = self._open.get(speaker)
        if state is not None and state.prefix:
            length = len(state.prefix)
            if _shape(text[:length].ljust(length)) == state.prefix:
                return text[length:]
        return text

    def feed(self, speaker: Speaker, text: str) -> Ended | None:
        """Take one stripped line; returns the End if the line ends a traceback."""
        state = self._open.get(speaker)
        if text.lstrip(" |+").startswith(_HEADER):
            prefix = state.prefix if state is not None and not state.frames else ""
            self._open[speaker] = _Open(ignored=speaker in self._ignore_next, prefix=prefix)
            self._ignore_next.discard(speaker)
        elif spawned := _SPAWNED.search(text):
            self._spawned = int(spawned["rank"])
        elif _CHAIN.search(text):
            self._chained.add(speaker)
        elif text.startswith(_HARMLESS):
            self._ignore_next.add(speaker)
        elif state is None:
            match = _TYPED.match(text) or _ERROR_FILE.match(text)
            return self._end(match["name"], None) if match else None
        elif frame := _FRAME.match(text):
            state.frames += 1
            state.ignored |= state.frames == 1 and text.endswith("in _exitfunc")
            state.file = frame["file"]
            if not (_OWN_CODE.search(frame["file"]) and "torch/utils/data" not in frame["file"]):
                state.data = bool(_DATA_FRAME.search(frame["file"]))
        elif state.frames and (match := _EXCEPTION.match(text) or _TYPED.match(text)):
            del self._open[speaker]
            return self._end(match["name"], state)
        return None

    def inside(self, speaker: Speaker, text: str) -> bool:
        """Whether the line is source code quoted in a traceback, which is evidence of nothing."""
        state = self._open.get(speaker)
        return state is not None and state.frames > 0 and text[:1].isspace()

    def chained(self, speaker: Speaker) -> bool:
        """Whether the exception that just ended continues a chain; asking clears the answer."""
        if speaker in self._chained and speaker not in self._open:
            self._chained.discard(speaker)
            return True
        return False

    def _end(self, name: str, state: _Open | None) -> Ended:
        rank, self._spawned = self._spawned, None
        if _LAUNCHER.search(name):
            signature = LAUNCHERS
        elif state is not None and name.endswith(_REFUSALS) and _CONFIG_FRAME.search(state.file):
            signature = CONFIG
        elif state is not None and state.data:
            signature = DATA
        else:
            signature = VAGUE if name.endswith("RuntimeError") or name.startswith("torch.") else GENERIC
        if signature is LAUNCHERS and "ProcessRaised" in name:
            self._spawned = rank
        return Ended(name, signature, state.ignored if state else False, rank, state.file if state else "")


def _shape(text: str) -> str:
    return re.sub(r"\d", "0", text)
