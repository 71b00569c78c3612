"""A study's results as they lie on disk: every run with its newest record, today's diagnosis and its parity."""

import dataclasses
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dtbench.results.machines import machines
from dtbench.study.matrix import Cell, Matrix, at
from dtbench.results.parity import Parity, judge, references
from dtbench.results.store import attempts, run_folder
from harness.contract.codec import decode, read_json
from harness.contract.diagnosis import Diagnosis
from harness.contract.errors import SpecError
from harness.contract.parity import Trace, same_training
from harness.contract.record import Record, read_record
from harness.contract.spec import RunSpec

MISSING = "missing"
"""Outcome of a run without a record: not yet launched, or still going."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """One attempt with its record."""

    path: str
    """Folder below the study's results."""
    record: Record
    diagnosis: Diagnosis
    """By the rules of today when its logs were read again, else the record's own."""
    reread: bool = False
    """Whether its logs were read again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One repeat of a cell, as it stands."""

    spec: RunSpec
    ended: tuple[Ended, ...]
    """Its attempts, oldest first."""
    problem: str | None = None
    """Why the newest record cannot be read."""
    parity: Parity | None = None
    machine: str | None = None
    """On which machine the attempt that counts was measured: `m1`, `m2`, ...; None when that is not known."""

    @property
    def newest(self) -> Ended | None:
        """The attempt that counts."""
        return self.ended[-1] if self.ended and self.problem is None else None

    @property
    def outcome(self) -> str:
        """How it ended, judged with today's rules; `missing` without a record."""
        if self.problem is not None:
            return "unknown"
        if self.newest is None:
            return MISSING
        outcome = self.newest.diagnosis.outcome
        promised = self.spec.identity.arm != "defaults"
        if outcome == "ok" and promised and self.parity and not self.parity.within:
            return "parity_mismatch"
        return "numerics" if outcome == "ok" and self._diverged_at is not None else outcome

    @property
    def off_reference(self) -> bool:
        """Whether it finished, and only its losses say that it trained something else than it should."""
        return self.newest is not None and self.newest.diagnosis.outcome == "ok" and self.outcome != "ok"

    @property
    def untold(self) -> str:
        """Why it does not count, when its own log does not show that: an unreadable record, or its losses."""
        if self.problem is not None:
            return self.problem
        if self.off_reference and self.outcome == "numerics":
            return f"The loss of step {self._diverged_at} is not finite."
        return self.parity.sentence if self.off_reference and self.parity else ""

    @property
    def _diverged_at(self) -> int | None:
        """First step whose loss is not finite."""
        measured = self.newest.record.measured if self.newest else None
        losses = enumerate(measured.loss if measured else ())
        return next((step for step, loss in losses if not math.isfinite(loss)), None)

    @property
    def tries(self) -> int:
        """Training process groups launched for it, over all attempts."""
        return sum(len(e.record.tries) for e in self.ended)


DIAGNOSES = "diagnoses.json"
"""Beside the records: attempt folder -> `Reread`, of every failed attempt whose logs are there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reread:
    """A diagnosis by today's rules, of one very record: an attempt made again is another one in the same folder."""

    record: str
    """sha256 of the record's file."""
    diagnosis: Diagnosis


Loaded = list[tuple[Cell, list[Run]]]
"""Every cell of a study with its runs."""


def load_runs(matrix: Matrix, results: Path) -> Loaded:
    """Every cell of the study with its runs. Unreadable records are kept as problems, never skipped."""
    try:
        diagnoses = read_diagnoses(results / DIAGNOSES)
    except SpecError:  # said, and put right, by `rediagnose.mend_diagnoses`
        diagnoses = {}
    by_cell: dict[tuple[str, str, str], list[Run]] = {}
    for spec in sorted(matrix.runs, key=lambda s: s.identity.repeat):
        key = (spec.platform.name, spec.identity.config, spec.identity.arm)
        by_cell.setdefault(key, []).append(_load_run(spec, results, diagnoses))
    known = references(e.record for runs in by_cell.values() for run in runs for e in run.ended)
    newest = [run.newest for runs in by_cell.values() for run in runs]
    places = machines({ended.path: ended.record for ended in newest if ended})
    return [
        (cell, [_placed(run, known, places) for run in by_cell.get((cell.platform, cell.config, cell.arm), [])])
        for cell in matrix.cells
    ]


def _load_run(spec: RunSpec, results: Path, diagnoses: dict[str, Reread]) -> Run:
    ended, problem = [], None
    for attempt in attempts(run_folder(results, spec)):
        path = str(attempt.record.parent.relative_to(results))
        try:
            record = read_record(attempt.record)
        except SpecError as error:
            problem = str(error).replace(str(attempt.record), f"{path}/record.json")
            continue
        problem = None
        if record.spec != at(spec, attempt=record.spec.identity.attempt):
            problem = f"{path}/record.json: holds the record of another run; move it away and run again"
            continue
        told = diagnoses.get(path)
        reread = told is not None and told.record == record_digest(attempt.record)
        diagnosis = told.diagnosis if told and reread else record.diagnosis
        ended.append(Ended(path=path, record=record, diagnosis=diagnosis, reread=reread))
    return Run(spec=spec, ended=tuple(ended), problem=problem)


def _placed(run: Run, known: dict[str, Trace], places: dict[str, str]) -> Run:
    """The run beside the study's other runs: its machine, and its loss against the reference's."""
    newest = run.newest
    if newest is None:
        return run
    run = dataclasses.replace(run, machine=places.get(newest.path))
    if newest.record.measured is None:
        return run
    reference = known.get(same_training(run.spec))
    if reference is None:
        return run
    return dataclasses.replace(run, parity=judge(run.spec, newest.record.measured, reference))


def with_diagnoses(loaded: Loaded, found: dict[str, Diagnosis]) -> Loaded:
    """The same runs with other diagnoses for some of their attempts."""

    def again(run: Run) -> Run:
        ended = (
            dataclasses.replace(e, diagnosis=found[e.path], reread=True) if e.path in found else e for e in run.ended
        )
        return dataclasses.replace(run, ended=tuple(ended))

    return [(cell, [again(run) for run in runs]) for cell, runs in loaded] if found else loaded


def read_diagnoses(path: Path) -> dict[str, Reread]:
    """Attempt folder -> diagnosis by today's rules; empty before the first `diagnose`. Raises SpecError naming it."""
    if not path.is_file():
        return {}
    plain = read_json(path)
    try:
        if not isinstance(plain, dict):
            raise SpecError(f"found a {type(plain).__name__} at the top, expected a mapping")
        return {folder: decode(Reread, found, folder) for folder, found in plain.items()}
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def say_problems(loaded: Loaded) -> None:
    """Name every record that cannot be read, one line each, to whoever waits for the report."""
    for problem in (run.problem for _, runs in loaded for run in runs if run.problem):
        print(problem)


def record_digest(path: Path) -> str:
    """sha256 of a record's file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def readable(cells: Iterable[tuple[Cell, list[Run]]]) -> list[Ended]:
    """Every readable attempt of the study."""
    return [ended for _, runs in cells for run in runs for ended in run.ended]
