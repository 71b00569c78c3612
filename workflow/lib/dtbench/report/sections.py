"""The report's tables as rows of plain values, in the units they are shown in. No formatting here."""

from collections.abc import Iterable
from typing import Any

from dtbench.results import cells as c
from dtbench.results.cells import CellResult, Value, cell_cost, platform_hours
from dtbench.results.comparison import Results
from dtbench.results.runs import MISSING
from dtbench.results.stats import Summary
from dtbench.study.matrix import Matrix
from dtbench.study.platforms import PlatformEntry
from harness.contract.codec import encode
from harness.contract.outcome import OUTCOMES
from harness.contract.units import GB

MS = 1000
PERCENT = 100

OPTIONAL = ("nccl_percent", "state_bytes", "reserved_gb", "mfu_percent", "loss", "parity_percent", "usd_per_mtoken")
"""Columns a table leaves out when no row has a value."""

FLAGS = {
    "faults": "faults were injected",
    "alloc_retries": "the allocator had to hand its cache back inside the timed window",
    "throttled": "the GPU throttled inside the timed window",
    "unstable": "the slowest steps of the timed window took much longer than its median one",
    "profile_failed": "the profiled pass failed",
}
"""What a flag beside an outcome says of a row's numbers."""

MOST_REASONS = 3
"""Reasons that a row gives in full."""


def _scaled(summary: Summary | None, factor: float = 1.0) -> dict[str, float] | None:
    if summary is None:
        return None
    return {"median": summary.median * factor, "low": summary.low * factor, "high": summary.high * factor}


def _median(result: CellResult, value: Value, factor: float = 1.0) -> float | None:
    median = result.median(value)
    return None if median is None else median * factor


def cell_row(result: CellResult, entry: PlatformEntry) -> dict[str, Any]:
    """One row of a platform's table."""
    peak, difference = result.peak(), result.parity_difference()
    return {
        "config": result.key[1],
        "peculiar": result.cell.peculiar,
        "dagger": result.dagger,
        "tokens_per_s": _scaled(result.summary(c.tokens_per_s)),
        "step_ms": _median(result, c.step_time_s, MS),
        "peak_gb": None if peak is None else peak / GB,
        "peak_at_least": result.peak_is_held,
        "reserved_gb": _median(result, c.reserved_bytes, 1 / GB),
        "nccl_percent": _median(result, c.nccl_share, PERCENT),
        "state_bytes": _median(result, c.state_bytes_per_parameter),
        "mfu_percent": _median(result, c.mfu, PERCENT),
        "loss": _median(result, c.last_loss),
        "parity_percent": None if difference is None else difference * PERCENT,
        "usd_per_mtoken": cell_cost(result, entry.price),
        "finished": len(result.finished),
        "runs": len(result.runs),
        "outcome": result.outcome,
        "others": {name: n for name, n in sorted(result.outcomes.items()) if name != result.outcome},
        "why": result.cell.exclusion.why if result.cell.exclusion else _why(result),
        "flags": result.flags,
    }


def _why(result: CellResult) -> str:
    """What no death row tells of the runs that do not count, else how the first failed run of a failed cell ended."""
    if untold := list(dict.fromkeys(run.untold for run in result.runs if run.untold)):
        more = len(untold) - MOST_REASONS
        return "; ".join(untold[:MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")
    if result.outcome == "ok":
        return ""
    for run in result.runs:
        if run.newest and run.outcome != "ok":
            return run.newest.diagnosis.sentence or OUTCOMES[run.outcome].sentence
    return ""


def platform_sections(matrix: Matrix, results: Results) -> list[dict[str, Any]]:
    """One section per platform: what it is, and one table per arm in the study's row order."""
    return [_platform_section(matrix, results, name) for name in matrix.study.platforms]


def _platform_section(matrix: Matrix, results: Results, name: str) -> dict[str, Any]:
    entry = matrix.platforms[name]
    configs = results.configs()
    first = matrix.study.rows.get(name, ())
    order = [*first, *(config for config in configs if config not in first)]
    tables: list[dict[str, Any]] = []
    for arm in matrix.study.arms:
        cells = [results.cells[name, config, arm] for config in order]
        rows = [cell_row(cell, entry) for cell in cells if cell.cell.exclusion is None or cell.key[1] in first]
        columns = [name for name in OPTIONAL if any(row[name] is not None for row in rows)]
        ran = [row for row in rows if row["outcome"] != MISSING]
        unrun = [row["config"] for row in rows if row["outcome"] == MISSING]
        # Exclusions alone are no table.
        shown = ran if any(row["runs"] for row in ran) else []
        tables.append(
            {"arm": arm, "rows": shown, "columns": columns, "unrun": unrun, "left_out": _left_out(cells, shown)}
        )
    own = [cell for key, cell in results.cells.items() if key[0] == name]
    return {
        "name": name,
        "entry": encode(entry),
        "memory": "peak alloc GB" if entry.device == "cuda" else "peak RSS GB",
        "tables": tables,
        "noise_percent": results.floor(name) * PERCENT,
        "machines": len({run.machine for cell in own for run in cell.finished if run.machine}),
        "machine_percent": None if (apart := results.machine_spread(name)) is None else apart * PERCENT,
        "ran": any(cell.finished for cell in own),
        "repeated": any(len(cell.finished) > 1 for cell in own),
        "hours": platform_hours(own),
        "flags": {
            flag: FLAGS.get(flag, "see the record")
            for table in tables
            for row in table["rows"]
            for flag in row["flags"]
        },
        "daggers": any(row["dagger"] for table in tables for row in table["rows"]),
    }


def _left_out(cells: Iterable[CellResult], shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Excluded configs without a row, by the reason that the study gives."""
    reasons: dict[tuple[str, str], list[str]] = {}
    named = {row["config"] for row in shown}
    for cell in cells:
        if cell.cell.exclusion is not None and cell.key[1] not in named:
            reasons.setdefault((cell.cell.exclusion.reason, cell.cell.exclusion.why), []).append(cell.key[1])
    return [{"reason": reason, "why": why, "configs": configs} for (reason, why), configs in reasons.items()]


def summary_rows(matrix: Matrix, results: Results) -> list[dict[str, Any]]:
    """One row per config and arm, one value per platform."""
    rows = []
    for config in results.configs():
        for arm in matrix.study.arms:
            cells = [results.cells[platform, config, arm] for platform in matrix.study.platforms]
            if not any(cell.runs and cell.outcome != MISSING for cell in cells):
                continue
            peculiar = {cell.cell.peculiar for cell in cells}
            rows.append(
                {
                    "config": config,
                    "arm": arm,
                    "peculiar": next(iter(peculiar)) if len(peculiar) == 1 else "",
                    "cells": [
                        {
                            "tokens_per_s": _median(cell, c.tokens_per_s),
                            "outcome": cell.outcome,
                            "dagger": cell.dagger,
                            "peculiar": cell.cell.peculiar if len(peculiar) > 1 else "",
                        }
                        for cell in cells
                    ],
                }
            )
    return rows
