"""The machines as the preflight found them: what a run was given, measured and not read from a data sheet."""

import statistics
from typing import Any

from dtbench.results.comparison import Results
from dtbench.results.loose import number
from dtbench.results.runs import Ended
from harness.contract.units import GB

TERA = 10**12
US = 10**6
MOST_ROWS = 8
"""Machines of a platform beyond which they share one row: where every run gets a node of its own, rows tell nothing."""


def machine_rows(results: Results) -> list[dict[str, Any]]:
    """One row per platform and machine: runs that count, first start, host, and medians of the preflights.

    Empty when there is nothing to tell: one machine and no preflight.
    """
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for platform in results.platforms:
        groups = _by_machine(results, platform)
        seen |= groups.keys()
        if len(groups) > MOST_ROWS:
            groups = {f"{len(groups)} machines": [ended for group in groups.values() for ended in group]}
        rows += [_row(platform, machine, ended) for machine, ended in groups.items()]
    measured = any(row["matmul_tflops"] is not None for row in rows)
    return rows if measured or len(seen) > 1 else []


def _by_machine(results: Results, platform: str) -> dict[str, list[Ended]]:
    groups: dict[str, list[Ended]] = {}
    for key, cell in results.cells.items():
        for run in cell.finished if key[0] == platform else ():
            if run.newest and run.machine:
                groups.setdefault(run.machine, []).append(run.newest)
    return {name: groups[name] for name in sorted(groups, key=lambda name: (len(name), name))}


def _row(platform: str, machine: str, ended: list[Ended]) -> dict[str, Any]:
    environments = [e.record.environment for e in ended if e.record.environment]
    host = environments[0].host if environments else {}
    cores, driver = number(host, "cores"), host.get("gpu_driver")
    return {
        "platform": platform,
        "machine": machine,
        "runs": len(ended),
        "first": min(e.record.started_at or "" for e in ended),
        "device": environments[0].device_name if environments else None,
        "cores": None if cores is None else int(cores),
        "driver": driver if isinstance(driver, str) else None,
        "matmul_tflops": _median(ended, "matmul", "flops_per_s", 1 / TERA),
        "bus_gb_per_s": _median(ended, "all_reduce", "bus_bytes_per_s", 1 / GB),
        "dispatch_us": _median(ended, "dispatch", "s_per_call", US),
    }


def _median(ended: list[Ended], probe: str, figure: str, factor: float) -> float | None:
    """The median of one preflight figure over the runs, in the unit shown."""
    preflights = [e.record.measured.preflight for e in ended if e.record.measured]
    found = [value for plain in preflights if (value := number(plain, probe, figure)) is not None]
    return statistics.median(found) * factor if found else None
