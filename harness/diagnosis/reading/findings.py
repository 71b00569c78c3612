"""What one pass over the logs found; nothing is decided yet."""

from dataclasses import dataclass, field

from harness.contract.outcome import Evidence
from harness.diagnosis.signatures.signature import Signature


@dataclass(slots=True)
class Hit:
    """One line that is evidence for an outcome."""

    signature: Signature
    file: str
    line: int
    text: str
    rank: int | None
    order: int
    """Place among all hits of all files."""
    episode: int
    """Hits of one chain of exceptions, or close to each other, share an episode."""
    in_traceback: bool
    """The line ends a Python traceback, or is the message of an uncaught C++ exception."""
    progress: int
    """Progress lines of its file before it."""
    soft: bool
    """The line was logged at warning level or below, or as prose."""

    def evidence(self) -> Evidence:
        """The line as the reader sees it."""
        return Evidence(file=self.file, line=self.line, text=self.text)


@dataclass(slots=True)
class Exit:
    """One process's end as the launcher or the shell reports it."""

    rank: int | None
    code: int | None
    """Negative: ended by that signal."""
    file: str
    line: int
    text: str
    first: bool = False
    """The launcher calls it the first failure it saw."""

    def evidence(self) -> Evidence:
        """The line as the reader sees it."""
        return Evidence(file=self.file, line=self.line, text=self.text)


@dataclass(slots=True)
class Wait:
    """A collective that a rank waited in until its watchdog timed out."""

    rank: int | None
    sequence: int
    operation: str
    elements_in: int
    elapsed_ms: int
    file: str
    line: int
    text: str

    def evidence(self) -> Evidence:
        """The line as the reader sees it."""
        return Evidence(file=self.file, line=self.line, text=self.text)


@dataclass(slots=True)
class Sequence:
    """The progress of a rank's default process group, as it logged it."""

    rank: int
    enqueued: int
    completed: int
    file: str
    line: int
    text: str


@dataclass(slots=True)
class Findings:
    """Everything one pass found."""

    hits: list[Hit] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    progress: dict[str, int] = field(default_factory=dict)
    """Progress lines per file."""
    spawned: int = 0
    finished: int = 0
    """Processes that the launcher saw start and end successfully."""
    started_pod: bool = False
    """The text shows that a container ran."""
    files: int = 0
    lines: int = 0
    unreadable: list[str] = field(default_factory=list)
