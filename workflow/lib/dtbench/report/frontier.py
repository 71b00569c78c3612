"""The fit frontier of a study: which searches it asks for, and their results as rows, prediction beside measurement."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtbench.study.definition import FrontierChoice
from dtbench.study.files import write_text
from dtbench.study.matrix import Matrix
from harness.contract.codec import encode
from harness.contract.errors import SpecError
from harness.contract.frontier import (
    Frontier,
    Goal,
    Goals,
    Probe,
    bounds_of,
    predicted_limit,
    probe_spec,
    read_frontier,
)
from harness.contract.spec import RunSpec
from harness.contract.units import GB
from harness.measure.ledger import predicted_peak_bytes

FOLDER = "frontier"
FILE = "frontier.json"
AGAIN = f"delete its {FILE} and ask for the target frontier again"


@dataclass(frozen=True, slots=True)
class Target:
    """One frontier to find."""

    spec: RunSpec
    choice: FrontierChoice

    @property
    def options(self) -> list[str]:
        """Options of `python -m harness frontier`."""
        given = {name: getattr(self.choice, name) for name in ("over", "limit", "resolution", "rungs", "processes")}
        return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]

    def goal(self, folder: str) -> Goal:
        """The same as an entry of a plan."""
        c = self.choice
        return Goal(
            spec=self.spec, bounds=bounds_of(c.over, c.limit, c.resolution, c.rungs, c.processes), folder=folder
        )

    @property
    def gpus(self) -> int:
        """GPUs that the search holds."""
        return self.spec.platform.world_size if self.spec.platform.device == "cuda" else 0


def frontier_targets(matrix: Matrix) -> dict[str, Target]:
    """Folder below the study's results -> target, in the order of the tables.

    Not in the tuned arm, whose settings are known only after its trials.
    """
    targets: dict[str, Target] = {}
    for choice in matrix.study.frontier:
        for cell in matrix.cells:
            if cell.spec is None or cell.arm == "tuned" or not choice.match(cell.platform, cell.config, cell.arm):
                continue
            protocol = dataclasses.replace(cell.spec.protocol, ladder_over=choice.over)
            spec = dataclasses.replace(cell.spec, protocol=protocol)
            place = f"{FOLDER}/{cell.platform}/{cell.config}/{cell.arm}/{choice.over}"
            targets.setdefault(place, Target(spec, choice))
    return targets


def write_frontier_plan(matrix: Matrix, results: Path) -> None:
    """Write frontier-plan.json, which `python -m harness frontier PLAN RESULTS` works through without Snakemake."""
    goals = [target.goal(place) for place, target in frontier_targets(matrix).items()]
    write_text(results / "frontier-plan.json", json.dumps(encode(Goals(goals=tuple(goals))), indent=1) + "\n")


def frontier_rows(matrix: Matrix, results: Path) -> list[dict[str, Any]]:
    """One row per frontier that was searched for, in the study's order; empty when none was.

    A result of another spec, or one that cannot be read, has no numbers: how it ended is that it is missing.
    """
    return [
        _lost(goal, found.word) if isinstance(found, Unusable) else _row(found, goal)
        for goal, found in _searched(matrix, results)
    ]


def say_unusable_frontiers(matrix: Matrix, results: Path) -> None:
    """Name every frontier whose result is not shown, one line each, to whoever waits for the tables."""
    for goal, found in _searched(matrix, results):
        if isinstance(found, Unusable):
            print(f"{goal.folder}/{FILE}: {found.reason}; {AGAIN}")


@dataclass(frozen=True, slots=True)
class Unusable:
    """A frontier.json that says nothing about the study as it is."""

    word: str
    reason: str


def _searched(matrix: Matrix, results: Path) -> Iterator[tuple[Goal, Frontier | Unusable]]:
    for place, target in frontier_targets(matrix).items():
        path, goal = results / place / FILE, target.goal(place)
        if not path.is_file():
            continue
        try:
            found = read_frontier(path)
            outdated = not all(_is_of(probe, goal.spec) for probe in found.probes)
        except SpecError as error:
            yield goal, Unusable("unreadable", str(error).removeprefix(f"{path}:").strip())
            continue
        yield goal, Unusable("outdated", "of another spec than the study's") if outdated else found


def _is_of(probe: Probe, spec: RunSpec) -> bool:
    """Whether a probe climbed for this spec: its folder is the hash of what it ran."""
    return bool(probe.ladder) and probe.folder.partition("/")[0] == probe_spec(spec, probe.ladder).run_hash()[:12]


def _lost(goal: Goal, word: str) -> dict[str, Any]:
    nothing = Frontier(
        platform=goal.spec.platform.name,
        config=goal.spec.identity.config,
        arm=goal.spec.identity.arm,
        over=goal.spec.protocol.ladder_over,
        resolution=goal.bounds.resolution,
        limit=goal.bounds.limit,
        largest_fit=None,
        smallest_fail=None,
        predicted=None,
        capacity_bytes=None,
        ended=f"{word}; {AGAIN}",
        probes=(),
    )
    return _row(nothing, goal)


def _row(found: Frontier, goal: Goal) -> dict[str, Any]:
    """The numbers of one frontier; the peak and the step's time are those seen at the largest size that fits.

    The prediction is today's ledger's, as diagnoses are today's rules': what the search itself went by is in its file.
    """
    predicted = found.predicted
    if found.capacity_bytes is not None:
        predicted = predicted_limit(goal.spec, goal.bounds, found.capacity_bytes, predicted_peak_bytes)
    rungs = [rung for probe in found.probes for rung in probe.rungs]
    best = next((r for r in rungs if r.fits and r.size == found.largest_fit), None)
    fail = next((r for r in rungs if r.fits is False and r.size == found.smallest_fail), None)
    peak = (best.peak_allocated_bytes or best.host_rss_peak_bytes) if best else None
    return {
        "platform": found.platform,
        "config": found.config,
        "arm": found.arm,
        "over": found.over,
        "largest_fit": found.largest_fit,
        "smallest_fail": found.smallest_fail,
        "predicted": predicted,
        "prediction_error": _error(predicted, found.largest_fit),
        "ended": found.ended,
        "limit": found.limit,
        "resolution": found.resolution,
        "peak_gb": None if peak is None else peak / GB,
        "step_ms": best.step_time_s * 1000 if best and best.step_time_s else None,
        "fail_outcome": fail.outcome if fail else None,
        "fail_phase": fail.phase if fail else None,
        "fail_asked_gb": None if fail is None or fail.asked_bytes is None else fail.asked_bytes / GB,
        "capacity_gb": None if found.capacity_bytes is None else found.capacity_bytes / GB,
        "processes": len(found.probes),
    }


def _error(predicted: int | None, measured: int | None) -> float | None:
    """(predicted - measured) / measured; None when either is missing."""
    return None if predicted is None or not measured else (predicted - measured) / measured


def write_frontier(matrix: Matrix, results: Path) -> None:
    """Write frontier.csv. Raises SpecError when the study asks for no frontier."""
    from dtbench.report.tables import write_csv

    if not matrix.study.frontier:
        raise SpecError(f"{matrix.path}: asks for no frontier; add for example frontier: {{over: micro_batch}}")
    say_unusable_frontiers(matrix, results)
    write_csv(frontier_rows(matrix, results), results / "frontier.csv")
