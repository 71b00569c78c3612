"""What the client knows of one Job and its results, and what it must do about it next: pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import structs

from harness.contract.spec import RunSpec

from . import status
from .manifest import job_name, place_of
from .status import Phase

Json = dict[str, Any]
RECORD, PROGRESS, FRONTIER = "record.json", "progress.json", "frontier.json"
"""Objects of an attempt's folder in the bucket that the client looks for."""


@dataclass(slots=True)
class Submission:
    """One attempt of a run, or one search for a frontier, on its way through the cluster."""

    spec: RunSpec
    folder: Path
    options: tuple[str, ...] = ()
    """Options of `python -m harness frontier`; empty for a run."""
    name: str = ""
    remote: str = ""
    """Its folder below the bucket's prefix."""
    seen: bool = False
    """Whether this client has seen or made its Job."""
    ran: bool = False
    """Whether a pod of it has been seen to run."""
    recorded: bool = False
    """Whether its record is in the bucket."""
    checked: str = ""
    """uid of the Job that was found to be this run's own."""
    replaced: str = ""
    """uid of the Job that this client has deleted in order to make it anew."""
    vanished_at_s: float | None = None
    stuck_at_s: float | None = None
    denied_at_s: float | None = None
    damaged: int = 0
    """Polls in which its record contradicted its files."""
    held: str = ""
    """Why its Job may not be made yet, in the API server's words."""
    progress: int = 0
    """Generation of the last progress.json read."""
    error: str | None = None
    """What ended it without a result; an ended submission without an error has its result below `folder`."""

    def __post_init__(self) -> None:
        self.name = job_name(self.spec, self.options)
        self.remote = place_of(self.spec, self.options)

    @property
    def label(self) -> str:
        """Its name in status lines."""
        i = self.spec.identity
        if self.options:
            return f"{self.spec.platform.name} {i.config} {i.arm} frontier over {self.spec.protocol.ladder_over}"
        tail = f" a{i.attempt}" if i.attempt > 1 else ""
        return f"{self.spec.platform.name} {i.config} {i.arm} r{i.repeat}{tail}"

    @property
    def result(self) -> str:
        """The object that is written last: it says that the attempt is finished."""
        return FRONTIER if self.options else RECORD

    def at(self, number: int) -> "Submission":
        """Another attempt of the same run."""
        identity = structs.replace(self.spec.identity, attempt=number)
        return Submission(structs.replace(self.spec, identity=identity), self.folder.with_name(f"a{number}"))


class Action(Enum):
    """What a submission needs next."""

    COLLECT = "collect"
    CREATE = "create"
    WAIT = "wait"
    VANISHED = "vanished"
    AUTOPSY = "autopsy"


def decide(seen: bool, job: Json | None, recorded: bool) -> Action:
    """What a submission needs, from its Job (listed first) and its record (listed second)."""
    if recorded:
        return Action.COLLECT
    if job is None:
        return Action.VANISHED if seen else Action.CREATE
    # Jobs are listed before the bucket: a Job seen as over has no record on the way.
    return Action.AUTOPSY if status.phase(job) in (Phase.COMPLETE, Phase.FAILED) else Action.WAIT


def last_pod_record(submission: Submission, blobs: Iterable[str]) -> str | None:
    """Where the last pod that was taken away left its record, below the attempt's folder: pods/<n>/record.json."""
    start = f"{submission.remote}/pods/"
    numbers = [n.removeprefix(start).split("/")[0] for n in blobs if n.startswith(start) and n.endswith(f"/{RECORD}")]
    last = max((int(n) for n in numbers if n.isdigit()), default=None)
    return None if last is None else f"pods/{last}/{RECORD}"


def later_attempts(submission: Submission, blobs: Iterable[str]) -> list[Submission]:
    """Later attempts of the same run that have left a record: a rerun from another clone made them."""
    if submission.options:
        return []
    run = submission.remote.rpartition("/")[0]
    found = (re.fullmatch(rf"{re.escape(run)}/a(\d{{1,6}})/{re.escape(RECORD)}", name) for name in blobs)
    numbers = sorted(int(match[1]) for match in found if match)
    return [submission.at(number) for number in numbers if number > submission.spec.identity.attempt]
