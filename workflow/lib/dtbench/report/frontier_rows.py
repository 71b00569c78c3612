"""The fit frontier of a study: which searches it asks for, and their results as rows, prediction beside measurement."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from dtbench.study.matrix import Matrix
from harness.contract.codec import decode_file, encode
from harness.contract.errors import SpecError
from harness.contract.files import write_atomically
from harness.contract.frontier import (
    Frontier,
    FrontierPlan,
    FrontierSpec,
    Probe,
    predicted_limit,
    probe_spec,
    search_bounds,
)
from harness.contract.spec import RunSpec
from harness.contract.units import GB
from harness.measure.ledger import predicted_peak_bytes

FOLDER = "frontier"
FILE = "frontier.json"
AGAIN = f"delete its {FILE} and ask for the target frontier again"


def frontier_specs(matrix: Matrix) -> dict[str, FrontierSpec]:
    """The frontiers that the study asks for, by folder below its results, in the order of the tables.

    The tuned arm has none: its settings are known only after its trials.
    """
    specs: dict[str, FrontierSpec] = {}
    for choice in matrix.study.frontier:
        bounds = search_bounds(choice.over, choice.limit, choice.resolution, choice.rungs, choice.processes)
        for cell in matrix.cells:
            if cell.spec is None or cell.arm == "tuned" or not choice.match(cell.platform, cell.config, cell.arm):
                continue
            protocol = structs.replace(cell.spec.protocol, ladder_over=choice.over)
            spec = structs.replace(cell.spec, protocol=protocol)
            place = f"{FOLDER}/{cell.platform}/{cell.config}/{cell.arm}/{choice.over}"
            specs.setdefault(place, FrontierSpec(spec=spec, bounds=bounds, folder=place))
    return specs


def write_frontier_plan(matrix: Matrix, results: Path) -> None:
    """Write frontier-plan.json, which `python -m harness frontier PLAN RESULTS` works through without Snakemake."""
    plan = FrontierPlan(frontiers=tuple(frontier_specs(matrix).values()))
    write_atomically(results / "frontier-plan.json", json.dumps(encode(plan), indent=1) + "\n")


class FrontierRow(NamedTuple):
    """One frontier; the fields are the columns of frontier.csv."""

    platform: str
    config: str
    arm: str
    over: str
    largest_fit: int | None
    smallest_fail: int | None
    predicted: int | None
    """By today's ledger, as diagnoses are by today's rules; the search's own prediction stays in its file."""
    prediction_error: float | None
    """(predicted - largest_fit) / largest_fit."""
    ended: str
    limit: int
    resolution: int
    peak_gb: float | None
    """At the largest size that fits, like `step_ms`."""
    step_ms: float | None
    fail_outcome: str | None
    fail_phase: str | None
    fail_asked_gb: float | None
    capacity_gb: float | None
    processes: int


def frontier_rows(matrix: Matrix, results: Path) -> list[FrontierRow]:
    """One row per frontier that was searched for, in the study's order; empty when none was.

    A result of another spec, or one that cannot be read, has no numbers and counts as missing.
    """
    return [
        _lost(wanted, found.word) if isinstance(found, Unusable) else _row(found, wanted)
        for wanted, found in _searched(matrix, results)
    ]


def say_unusable_frontiers(matrix: Matrix, results: Path) -> None:
    """Name every frontier whose result is not shown, one line each, to whoever waits for the tables."""
    for wanted, found in _searched(matrix, results):
        if isinstance(found, Unusable):
            print(f"{wanted.folder}/{FILE}: {found.reason}; {AGAIN}")


@dataclass(frozen=True, slots=True)
class Unusable:
    """A frontier.json that says nothing about the study as it is."""

    word: str
    reason: str


def _searched(matrix: Matrix, results: Path) -> Iterator[tuple[FrontierSpec, Frontier | Unusable]]:
    for wanted in frontier_specs(matrix).values():
        path = results / wanted.folder / FILE
        if not path.is_file():
            continue
        try:
            found = decode_file(Frontier, path)
            outdated = not all(_is_of(probe, wanted.spec) for probe in found.probes)
        except SpecError as error:
            yield wanted, Unusable("unreadable", str(error).removeprefix(f"{path}:").strip())
            continue
        yield wanted, Unusable("outdated", "of another spec than the study's") if outdated else found


def _is_of(probe: Probe, spec: RunSpec) -> bool:
    """Whether this spec is what the probe ran: the probe's folder is named by its hash."""
    return bool(probe.ladder) and probe.folder.partition("/")[0] == probe_spec(spec, probe.ladder).run_hash()[:12]


def _lost(wanted: FrontierSpec, word: str) -> FrontierRow:
    nothing = Frontier(
        platform=wanted.spec.platform.name,
        config=wanted.spec.identity.config,
        arm=wanted.spec.identity.arm,
        over=wanted.spec.protocol.ladder_over,
        resolution=wanted.bounds.resolution,
        limit=wanted.bounds.limit,
        largest_fit=None,
        smallest_fail=None,
        predicted=None,
        capacity_bytes=None,
        ended=f"{word}; {AGAIN}",
        probes=(),
    )
    return _row(nothing, wanted)


def _row(found: Frontier, wanted: FrontierSpec) -> FrontierRow:
    predicted = found.predicted
    if found.capacity_bytes is not None:
        predicted = predicted_limit(wanted.spec, wanted.bounds, found.capacity_bytes, predicted_peak_bytes)
    rungs = [rung for probe in found.probes for rung in probe.rungs]
    best = next((r for r in rungs if r.fits and r.size == found.largest_fit), None)
    fail = next((r for r in rungs if r.fits is False and r.size == found.smallest_fail), None)
    return FrontierRow(
        platform=found.platform,
        config=found.config,
        arm=found.arm,
        over=found.over,
        largest_fit=found.largest_fit,
        smallest_fail=found.smallest_fail,
        predicted=predicted,
        prediction_error=_error(predicted, found.largest_fit),
        ended=found.ended,
        limit=found.limit,
        resolution=found.resolution,
        peak_gb=_gb(best.peak_allocated_bytes or best.host_rss_peak_bytes) if best else None,
        step_ms=best.step_time_s * 1000 if best and best.step_time_s else None,
        fail_outcome=fail.outcome if fail else None,
        fail_phase=fail.phase if fail else None,
        fail_asked_gb=_gb(fail.asked_bytes) if fail else None,
        capacity_gb=_gb(found.capacity_bytes),
        processes=len(found.probes),
    )


def _gb(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GB


def _error(predicted: int | None, measured: int | None) -> float | None:
    """(predicted - measured) / measured; None when either is missing."""
    return None if predicted is None or not measured else (predicted - measured) / measured


def write_frontier(matrix: Matrix, results: Path) -> None:
    """Write frontier.csv. Raises SpecError when the study asks for no frontier."""
    from dtbench.report.tables import write_csv

    if not matrix.study.frontier:
        raise SpecError(f"{matrix.path}: asks for no frontier; add for example frontier: {{over: micro_batch}}")
    say_unusable_frontiers(matrix, results)
    write_csv((row._asdict() for row in frontier_rows(matrix, results)), results / "frontier.csv")
