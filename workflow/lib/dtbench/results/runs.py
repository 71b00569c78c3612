"""A study's results as they lie on disk: every run with its attempts, today's diagnosis of each, and its parity.

Parity: do two runs train the same thing? Their losses are compared step by step with those of the study's reference.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from dtbench.results.machines import machines
from dtbench.results.store import Found, scan
from dtbench.study.cell import Cell, at
from dtbench.study.matrix import Matrix
from harness.contract.codec import read_json
from harness.contract.outcome import Diagnosis
from harness.contract.errors import SpecError
from harness.contract.parity import Trace, same_training
from harness.contract.record import Record, read_record
from harness.contract.spec import RunSpec
from harness.diagnosis import diagnose_folder
import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from harness.contract.measured import Measured
from harness.contract.parity import Mismatch, Trace, loss_differences, reference_mismatches, same_training, trace_of
from harness.contract.record import Record
from harness.contract.spec import RunSpec

MISSING = "missing"
"""Outcome of a run without a record: not yet launched, or still going."""
SUPERVISORS_OWN = frozenset({"preemption", "user_cancelled", "deadline", "parity_mismatch", "upload_failed"})
"""Outcomes that the supervisor itself observed, so that no log overrules them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attempt with its record."""

    path: str
    """Folder below the study's results."""
    record: Record
    diagnosis: Diagnosis
    """By today's rules if it failed and left logs, else the record's own."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Largest relative loss difference over the compared steps."""

    difference: float
    """|loss - reference| / |reference|, the largest; infinite for a loss that is not finite."""
    step: int
    """0-based step in which it fell."""
    steps: int
    """Steps compared."""
    tolerance: float
    loss: float
    """In that step."""
    reference: float
    """The reference's loss in that step."""
    mismatches: tuple[Mismatch, ...] | None = None
    """What the gate says of structured data; None: judged by the tolerance."""

    @property
    def within(self) -> bool:
        """Whether it is the reference's training."""
        return self.difference <= self.tolerance if self.mismatches is None else not self.mismatches

    @property
    def sentence(self) -> str:
        """The difference in words; steps are counted from 0 as in the run's own gate."""
        if self.mismatches:
            return f"{self.mismatches[0]}."
        apart = f"{self.difference:.2%} apart" if math.isfinite(self.difference) else "not to be compared"
        return (
            f"The loss of step {self.step} is {self.loss:.6g}, the reference's is {self.reference:.6g}: "
            f"{apart}, at most {self.tolerance:.2%} allowed in the first {self.steps} steps."
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One repeat of a cell, as it stands."""

    spec: RunSpec
    attempts: tuple[Attempt, ...]
    """Those whose record can be read, oldest first."""
    problem: str | None = None
    """Why the newest record cannot be read."""
    parity: Parity | None = None
    machine: str | None = None
    """The machine that measured the attempt that counts: `m1`, `m2`, ...; None when unknown."""

    @property
    def newest(self) -> Attempt | None:
        """The attempt that counts."""
        return self.attempts[-1] if self.attempts and self.problem is None else None

    @cached_property
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
        """Why the run does not count, if its own log does not show it: an unreadable record, or its losses."""
        if self.problem is not None:
            return self.problem
        if self.off_reference and self.outcome == "numerics":
            return f"The loss of step {self._diverged_at} is not finite."
        return self.parity.sentence if self.off_reference and self.parity else ""

    @cached_property
    def _diverged_at(self) -> int | None:
        """First step whose loss is not finite."""
        measured = self.newest.record.measured if self.newest else None
        losses = enumerate(measured.loss if measured else ())
        return next((step for step, loss in losses if not math.isfinite(loss)), None)

    @property
    def tries(self) -> int:
        """Training process groups launched for it, over all attempts."""
        return sum(len(attempt.record.tries) for attempt in self.attempts)


Loaded = list[tuple[Cell, list[Run]]]
"""Every cell of a study with its runs."""


def load_runs(matrix: Matrix, results: Path, found: Found | None = None) -> Loaded:
    """Every cell of the study with its runs, judged by today's rules. An unreadable record becomes `Run.problem`.

    `found`, what a scan has seen of the study's runs, spares looking for their records again.
    """
    by_cell: dict[tuple[str, str, str], list[Run]] = {}
    found = scan(results, matrix.runs) if found is None else found
    for folder, (spec, recorded) in sorted(found.items(), key=lambda item: item[1][0].identity.repeat):
        key = (spec.platform.name, spec.identity.config, spec.identity.arm)
        by_cell.setdefault(key, []).append(_load_run(spec, results, [f"{folder}/a{number}" for number in recorded]))
    placed = iter(_beside_each_other([run for runs in by_cell.values() for run in runs]))
    by_cell = {key: [next(placed) for _ in runs] for key, runs in by_cell.items()}
    return [(cell, by_cell.get((cell.platform, cell.config, cell.arm), [])) for cell in matrix.cells]


def read_runs(results: Path, keep: Callable[[Record], bool] = lambda record: True) -> list[Run]:
    """Every run that left a record below one study's folder, judged by today's rules; needs no study file.

    `keep` chooses attempts. Raises SpecError for a folder that does not exist and for a record that cannot be read.
    """
    if not results.is_dir():
        raise SpecError(f"{results}: found no such folder; expected one study's results, for example results/NAME")
    found: dict[Path, list[Attempt]] = {}
    for path in sorted(results.glob("*/*/*/r*-*/a*/record.json")):
        record = read_record(path)
        if keep(record):
            diagnosis = _todays_diagnosis(path.parent, record)
            place = path.parent.relative_to(results).as_posix()
            found.setdefault(path.parents[1], []).append(Attempt(path=place, record=record, diagnosis=diagnosis))
    ordered = [sorted(attempts, key=lambda a: a.record.spec.identity.attempt) for attempts in found.values()]
    return _beside_each_other([Run(spec=at(a[0].record.spec, attempt=1), attempts=tuple(a)) for a in ordered])


def _beside_each_other(runs: list[Run]) -> list[Run]:
    """The runs of one study, each with its machine and with its loss held against the reference's."""
    known = references(attempt.record for run in runs for attempt in run.attempts)
    places = machines({run.newest.path: run.newest.record for run in runs if run.newest})
    return [_placed(run, known, places) for run in runs]


def _load_run(spec: RunSpec, results: Path, paths: list[str]) -> Run:
    attempts, problem = [], None
    for path in paths:
        file = results / path / "record.json"
        try:
            record = read_record(file)
        except SpecError as error:
            problem = str(error).replace(str(file), f"{path}/record.json")
            continue
        problem = None
        if not record.spec.is_same_run(at(spec, attempt=record.spec.identity.attempt)):
            problem = f"{path}/record.json: holds the record of another run; move it away and run again"
            continue
        attempts.append(Attempt(path=path, record=record, diagnosis=_todays_diagnosis(results / path, record)))
    return Run(spec=spec, attempts=tuple(attempts), problem=problem)


def _todays_diagnosis(folder: Path, record: Record) -> Diagnosis:
    """Read the logs of a failed attempt again; the record's own diagnosis stays where they say nothing."""
    if record.outcome == "ok" or record.outcome in SUPERVISORS_OWN or not record.tries:
        return record.diagnosis
    last = record.tries[-1]
    logs = folder / f"try-{last.index}"
    if not any(logs.glob("*.log*")):
        return record.diagnosis
    pod = _pod_facts(folder / "k8s.json")
    diagnosis = diagnose_folder(
        logs,
        exits=last.exits,
        launcher_exit_code=last.launcher_exit_code,
        completed=False,
        pod=pod.get("pod"),
        events=pod.get("events"),
    )
    # What the supervisor saw live (a stall, a stack) is not in the files, so an inconclusive reading changes nothing.
    return record.diagnosis if diagnosis.outcome in ("unknown", "ok") else diagnosis


def _pod_facts(path: Path) -> dict[str, Any]:
    try:
        plain = read_json(path)
    except SpecError:
        return {}
    return plain if isinstance(plain, dict) else {}


def _placed(run: Run, known: dict[str, Trace], places: dict[str, str]) -> Run:
    """The run with what only the study's other runs show: its machine, and its loss against the reference's."""
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


def all_runs(loaded: Loaded) -> list[Run]:
    """Every run of the study, in the order of its cells."""
    return [run for _, runs in loaded for run in runs]


def all_attempts(loaded: Loaded) -> list[Attempt]:
    """Every readable attempt of the study."""
    return [attempt for run in all_runs(loaded) for attempt in run.attempts]


def references(records: Iterable[Record]) -> dict[str, Trace]:
    """Trainings of the reference runs by `same_training`; the first finished one of each, in the order given."""
    found: dict[str, Trace] = {}
    for record in records:
        measured = record.measured if record.spec.identity.reference and record.outcome == "ok" else None
        if measured and measured.loss and all(map(math.isfinite, measured.loss)):
            found.setdefault(same_training(record.spec), trace_of(measured))
    return found


def judge(spec: RunSpec, measured: Measured, reference: Trace) -> Parity | None:
    """Compare a finished run with the reference's training; None when there is nothing to compare."""
    protocol = spec.protocol
    parity = compare(measured.loss, reference.loss, steps=protocol.parity_steps, tolerance=protocol.parity_tolerance)
    if parity is None or spec.data.tokens == "skewed":
        return parity
    return dataclasses.replace(parity, mismatches=tuple(reference_mismatches(spec, trace_of(measured), reference)))


def compare(loss: Sequence[float], reference: Sequence[float], *, steps: int, tolerance: float) -> Parity | None:
    """Compare the first `steps` losses; None when there is nothing to compare."""
    differences = loss_differences(loss, reference, steps)
    if not differences:
        return None
    worst = max(range(len(differences)), key=differences.__getitem__)
    return Parity(differences[worst], worst, len(differences), tolerance, loss[worst], reference[worst])
