"""Runs and cells as flat tables for whoever wants to look with their own tools: runs.csv and cells.csv."""

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dtbench.results import numbers as c
from dtbench.results.cells import CellResult, collect
from dtbench.results.frame import table_rows
from dtbench.results.runs import Loaded, all_runs, load_runs
from dtbench.study.matrix import Matrix
from harness.contract.files import write_atomically
from harness.contract.record import Record

NUMBERS: dict[str, Callable[[Record], float | None]] = {
    "tokens_per_s": c.tokens_per_s,
    "step_time_s": c.step_time_s,
    "reserved_bytes": c.reserved_bytes,
    "nccl_share": c.nccl_share,
    "state_bytes_per_parameter": c.state_bytes_per_parameter,
    "last_loss": c.last_loss,
    "mfu": c.mfu,
}
"""Column of cells.csv -> number of a record."""


def cell_row(result: CellResult) -> dict[str, Any]:
    """One cell as a row of cells.csv."""
    platform, config, arm = result.key
    row: dict[str, Any] = {
        "platform": platform,
        "config": config,
        "arm": arm,
        "outcome": result.outcome,
        "outcomes": json.dumps(dict(sorted(result.outcomes.items()))),
        "runs": len(result.runs),
        "finished": len(result.finished),
        "attempts": sum(len(run.attempts) for run in result.runs),
        "tries": sum(run.tries for run in result.runs),
        "departs": result.cell.peculiar,
        "remedied": result.dagger,
        "flags": " ".join(result.flags),
        "parity_difference": result.parity_difference(),
        "peak_bytes_max": result.peak(),
    }
    for name in ("tokens_per_s", "step_time_s"):
        s = result.summary(NUMBERS[name])
        row |= {name: s and s.median, f"{name}_low": s and s.low, f"{name}_high": s and s.high}
    for name in ("reserved_bytes", "nccl_share", "state_bytes_per_parameter", "last_loss", "mfu"):
        row[name] = result.median(NUMBERS[name])
    return row


def write_tables(matrix: Matrix, results: Path, loaded: Loaded | None = None) -> list[str]:
    """Write runs.csv and cells.csv from the records that exist; `loaded` spares reading them. Returns the names."""
    loaded = load_runs(matrix, results) if loaded is None else loaded
    write_csv(table_rows(all_runs(loaded)), results / "runs.csv")
    write_csv([cell_row(result) for result in collect(loaded).values()], results / "cells.csv")
    return ["runs.csv", "cells.csv"]


def write_csv(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows that share their keys, atomically; None becomes an empty field."""
    text = io.StringIO()
    columns: dict[str, None] = {}
    listed = list(rows)
    for row in listed:
        columns |= dict.fromkeys(row)
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    write_atomically(path, text.getvalue())
