"""The platforms' tables and the one across them, as typed rows in the units they are shown in. No formatting here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dtbench.results import numbers as c
from dtbench.results.cells import CellResult, cell_cost, platform_hours
from dtbench.results.comparison import Results
from dtbench.results.numbers import Value
from dtbench.results.runs import MISSING
from dtbench.results.stats import Summary
from dtbench.study.matrix import Matrix
from dtbench.study.platforms import PlatformEntry
from harness.contract.outcome import OUTCOMES
from harness.contract.units import GB

MS = 1000
PERCENT = 100

OPTIONAL = (
    "nccl_percent",
    "state_bytes",
    "reserved_gb",
    "mfu_percent",
    "joules_per_token",
    "watts",
    "mhz",
    "loss",
    "parity_percent",
    "usd_per_mtoken",
    "gpu_hours_per_mtoken",
)
"""Columns a table leaves out when no row has a value."""

FLAGS = {
    "faults": "faults were injected",
    "alloc_retries": "the allocator freed its cache and retried inside the timed window",
    "throttled": "the GPU throttled inside the timed window",
    "unstable": "the slowest timed steps took much longer than the median one",
    "profile_failed": "the profiled pass failed",
    "compile_incomplete": "torch compiled some decoder blocks only and ran the rest as plain Python",
    "host_bound": "steps take longer than the GPU is busy, by more than noise: at least this speed on a faster host",
}
"""Flag of a record -> what it says of a row's numbers."""

MOST_REASONS = 3
"""Reasons that a row gives in full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRow:
    """One row of a platform's table."""

    config: str
    peculiar: str
    """What its overrides change."""
    dagger: bool
    tokens_per_s: Summary | None
    step_ms: float | None
    peak_gb: float | None
    peak_at_least: bool
    """Whether the peak is what a run held when it died, so that the cell needs more."""
    reserved_gb: float | None
    nccl_percent: float | None
    state_bytes: float | None
    """Bytes per parameter."""
    mfu_percent: float | None
    joules_per_token: float | None
    watts: float | None
    """Mean power of a GPU."""
    mhz: float | None
    loss: float | None
    parity_percent: float | None
    usd_per_mtoken: float | None
    gpu_hours_per_mtoken: float | None
    """None where a price says what a million tokens cost."""
    finished: int
    runs: int
    outcome: str
    others: dict[str, int]
    """Other outcomes among its runs -> how often."""
    why: str
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Configs that the study excludes for one reason."""

    reason: str
    why: str
    configs: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmTable:
    """One platform in one arm."""

    arm: str
    rows: list[CellRow]
    columns: list[str]
    """The optional columns that any row fills."""
    unrun: list[str]
    left_out: list[LeftOut]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformSection:
    """One platform: what it is, and one table per arm."""

    name: str
    entry: PlatformEntry
    memory: str
    """Heading of the memory column."""
    tables: list[ArmTable]
    noise_percent: float
    machines: int
    machine_percent: float | None
    """Largest difference of one cell between machines."""
    ran: bool
    repeated: bool
    hours: float
    flags: dict[str, str]
    """Flag -> what it says of a row's numbers."""
    daggers: bool


class SummaryCell(NamedTuple):
    """One config and arm on one platform."""

    tokens_per_s: float | None
    outcome: str
    dagger: bool
    peculiar: str
    """What its overrides change, where platforms differ in that."""


class SummaryRow(NamedTuple):
    """One config and arm across the platforms."""

    config: str
    arm: str
    peculiar: str
    """What its overrides change, where that is the same on all platforms."""
    cells: list[SummaryCell]


def _median(result: CellResult, value: Value, factor: float = 1.0) -> float | None:
    median = result.median(value)
    return None if median is None else median * factor


def _cell_row(result: CellResult, entry: PlatformEntry, host_bound: bool) -> CellRow:
    peak, difference = result.peak(), result.parity_difference()
    return CellRow(
        config=result.key[1],
        peculiar=result.cell.peculiar,
        dagger=result.dagger,
        tokens_per_s=result.summary(c.tokens_per_s),
        step_ms=_median(result, c.step_time_s, MS),
        peak_gb=None if peak is None else peak / GB,
        peak_at_least=result.peak_is_held,
        reserved_gb=_median(result, c.reserved_bytes, 1 / GB),
        nccl_percent=_median(result, c.nccl_share, PERCENT),
        state_bytes=_median(result, c.state_bytes_per_parameter),
        mfu_percent=_median(result, c.mfu, PERCENT),
        joules_per_token=_median(result, c.joules_per_token),
        watts=_median(result, c.watts_per_gpu),
        mhz=_median(result, c.sm_mhz),
        loss=_median(result, c.last_loss),
        parity_percent=None if difference is None else difference * PERCENT,
        usd_per_mtoken=cell_cost(result, entry.price),
        gpu_hours_per_mtoken=None if entry.price else _median(result, c.gpu_hours_per_million_tokens),
        finished=len(result.finished),
        runs=len(result.runs),
        outcome=result.outcome,
        others={name: n for name, n in sorted(result.outcomes.items()) if name != result.outcome},
        why=result.cell.exclusion.why if result.cell.exclusion else _why(result),
        flags=(*result.flags, "host_bound") if host_bound else result.flags,
    )


def _why(result: CellResult) -> str:
    """Why runs do not count that have no row in the death table; else how a failed cell's first run ended."""
    if untold := list(dict.fromkeys(run.untold for run in result.runs if run.untold)):
        more = len(untold) - MOST_REASONS
        return "; ".join(untold[:MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")
    if result.outcome == "ok":
        return ""
    for run in result.runs:
        if run.newest and run.outcome != "ok":
            return run.newest.diagnosis.sentence or OUTCOMES[run.outcome].sentence
    return ""


def platform_sections(matrix: Matrix, results: Results) -> list[PlatformSection]:
    """One section per platform: what it is, and one table per arm in the study's row order."""
    return [_platform_section(matrix, results, name) for name in matrix.study.platforms]


def _platform_section(matrix: Matrix, results: Results, name: str) -> PlatformSection:
    entry = matrix.platforms[name]
    first = matrix.study.rows.get(name, ())
    order = [*first, *(config for config in results.configs() if config not in first)]
    tables = [
        _arm_table(results, [results.cells[name, config, arm] for config in order], entry, first)
        for arm in matrix.study.arms
    ]
    rows = [row for table in tables for row in table.rows]
    own = [cell for key, cell in results.cells.items() if key[0] == name]
    return PlatformSection(
        name=name,
        entry=entry,
        memory="peak alloc GB" if entry.device == "cuda" else "peak RSS GB",
        tables=tables,
        noise_percent=results.floor(name) * PERCENT,
        machines=len({run.machine for cell in own for run in cell.finished if run.machine}),
        machine_percent=None if (apart := results.machine_spread(name)) is None else apart * PERCENT,
        ran=any(cell.finished for cell in own),
        repeated=any(len(cell.finished) > 1 for cell in own),
        hours=platform_hours(own),
        flags={flag: FLAGS.get(flag, "see the record") for row in rows for flag in row.flags},
        daggers=any(row.dagger for row in rows),
    )


def _arm_table(results: Results, cells: list[CellResult], entry: PlatformEntry, first: Sequence[str]) -> ArmTable:
    kept = [cell for cell in cells if cell.cell.exclusion is None or cell.key[1] in first]
    rows = [_cell_row(cell, entry, results.host_bound(cell)) for cell in kept]
    ran = [row for row in rows if row.outcome != MISSING]
    # A table of excluded cells alone says nothing.
    shown = ran if any(row.runs for row in ran) else []
    return ArmTable(
        arm=cells[0].cell.arm,
        rows=shown,
        columns=[name for name in OPTIONAL if any(getattr(row, name) is not None for row in rows)],
        unrun=[row.config for row in rows if row.outcome == MISSING],
        left_out=_left_out(cells, shown),
    )


def _left_out(cells: Iterable[CellResult], shown: list[CellRow]) -> list[LeftOut]:
    """Excluded configs without a row, by the reason that the study gives."""
    reasons: dict[tuple[str, str], list[str]] = {}
    named = {row.config for row in shown}
    for cell in cells:
        if cell.cell.exclusion is not None and cell.key[1] not in named:
            reasons.setdefault((cell.cell.exclusion.reason, cell.cell.exclusion.why), []).append(cell.key[1])
    return [LeftOut(reason=reason, why=why, configs=configs) for (reason, why), configs in reasons.items()]


def summary_rows(matrix: Matrix, results: Results) -> list[SummaryRow]:
    """One row per config and arm that any run belongs to, one value per platform."""
    rows = []
    for config in results.configs():
        for arm in matrix.study.arms:
            cells = [results.cells[platform, config, arm] for platform in matrix.study.platforms]
            if not any(cell.runs and cell.outcome != MISSING for cell in cells):
                continue
            peculiar = {cell.cell.peculiar for cell in cells}
            values = [
                SummaryCell(
                    tokens_per_s=_median(cell, c.tokens_per_s),
                    outcome=cell.outcome,
                    dagger=cell.dagger,
                    peculiar=cell.cell.peculiar if len(peculiar) > 1 else "",
                )
                for cell in cells
            ]
            rows.append(SummaryRow(config, arm, next(iter(peculiar)) if len(peculiar) == 1 else "", values))
    return rows
