"""The tables below those of the platforms: time, kernels, trials, machines, deaths, provenance."""

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from dtbench.results import cells as c
from dtbench.results.cells import CellResult, number
from dtbench.results.comparison import Results
from dtbench.results.deaths import Death
from dtbench.results.runs import Ended
from dtbench.results.stats import summarize
from harness.contract.codec import encode
from harness.contract.outcome import OUTCOMES
from harness.contract.units import GB

MS = 1000
PERCENT = 100
US = 10**6
TERA = 10**12

TIME_SHARES = ("compute", "comm_exposed", "copy_exposed", "idle")
"""Parts of a step in the profiled pass; together the whole of it."""
MOST_ROWS = 8
"""Machines of a platform beyond which they share one row: where every run gets a node of its own, rows tell nothing."""


def time_rows(results: Results) -> list[dict[str, Any]]:
    """Where a step's time goes, for cells with a profiled pass; percent of the step, mean over runs."""
    rows = []
    for (platform, config, arm), result in results.cells.items():
        means = {name: result.mean(c.profile_value(f"shares.{name}")) for name in TIME_SHARES}
        shares = {name: share * PERCENT for name, share in means.items() if share is not None}
        if len(shares) == len(TIME_SHARES):
            profiled, step = result.mean(c.profiled_step_s), result.mean(c.step_time_s)
            timed = {name: result.mean(c.timed_share(name)) for name in ("compute", "idle")}
            rows.append(
                {
                    "platform": platform,
                    "config": config,
                    "arm": arm,
                    "nccl_percent": _scaled(result.median(c.nccl_share), PERCENT),
                    "profiled_ms": None if profiled is None else profiled * MS,
                    "timed_ms": None if step is None else step * MS,
                    "timed": {name: None if share is None else share * PERCENT for name, share in timed.items()},
                    **shares,
                }
            )
    return rows


def kernel_table(results: Results) -> dict[str, Any]:
    """What the compute of a step is made of: `kinds`, longest first over all rows, and their milliseconds per row."""
    rows: list[dict[str, Any]] = []
    totals: dict[str, float] = {}
    for (platform, config, arm), result in results.cells.items():
        kinds = result.kernel_kinds()
        found = {kind: _scaled(result.median(c.profile_value(f"kernel_kinds_s.{kind}")), MS) or 0.0 for kind in kinds}
        for kind, milliseconds in found.items():
            totals[kind] = totals.get(kind, 0.0) + milliseconds
        if found:
            rows.append({"platform": platform, "config": config, "arm": arm, "ms": found})
    return {"kinds": sorted(totals, key=lambda kind: -totals[kind]), "rows": rows}


def death_rows(deaths: Sequence[Death]) -> list[dict[str, Any]]:
    """The death table."""
    return [
        {
            "platform": d.platform,
            "config": d.config,
            "arm": d.arm,
            "where": f"r{d.repeat} a{d.attempt} try {d.index}",
            "needs_gb": None if d.peak_bytes is None else d.peak_bytes / GB,
            "at_least": d.at_least,
            "outcome": d.diagnosis.outcome,
            "confidence": d.diagnosis.confidence,
            "collectives": d.collectives,
            "steps": d.steps,
            "culprit": d.diagnosis.culprit_rank,
            "exits": d.exits,
            "sentence": d.diagnosis.sentence or OUTCOMES[d.diagnosis.outcome].sentence,
            "evidence": encode(d.evidence) if d.evidence and d.evidence.text != d.diagnosis.sentence else None,
            "folder": d.folder,
            "advice": d.advice,
            "cured_by": d.cured_by,
        }
        for d in deaths
    ]


def provenance(ended: Iterable[Ended]) -> dict[str, Any]:
    """Where the numbers come from: sources, versions, devices, commits, dates, counts."""
    listed = list(ended)
    environments = [e.record.environment for e in listed if e.record.environment]
    versions: dict[str, set[str]] = {}
    for environment in environments:
        for name, version in environment.versions.items():
            versions.setdefault(name, set()).add(version)
    dates = sorted(e.record.started_at for e in listed if e.record.started_at)
    return {
        "attempts": len(listed),
        "tries": sum(len(e.record.tries) for e in listed),
        "sources": sorted({e.record.source for e in listed if e.record.source}),
        "versions": {name: sorted(found) for name, found in sorted(versions.items())},
        "devices": sorted({e.device_name for e in environments if e.device_name}),
        "commits": sorted({e.git_commit for e in environments if e.git_commit}),
        "first": dates[0] if dates else None,
        "last": dates[-1] if dates else None,
        "notes": sorted({note for e in listed for note in e.record.notes}),
        "faults": any(e.record.spec.faults for e in listed),
    }


def trial_rows(results: Results) -> list[dict[str, Any]]:
    """One row per trial of each tuned cell, over the newest attempt of its runs; empty without any."""
    return [row for result in results.cells.values() for row in _trials(result)]


def _trials(result: CellResult) -> list[dict[str, Any]]:
    platform, config, arm = result.key
    records = [run.newest.record for run in result.runs if run.newest]
    searches = [r.measured.search for r in records if r.measured and r.measured.search]
    rows: dict[str, list[dict[str, Any]]] = {}
    for search in searches:
        for trial in search:
            rows.setdefault(settings_text(trial["settings"]), []).append(trial)
    return [
        {
            "platform": platform,
            "config": config,
            "arm": arm,
            "settings": settings,
            "tokens_per_s": summary.median if (summary := summarize(t["tokens_per_s"] for t in trials)) else None,
            "kept": sum(bool(t["kept"]) for t in trials),
            "runs": len(trials),
            "outcomes": sorted({t["outcome"] for t in trials}),
        }
        for settings, trials in rows.items()
    ]


def settings_text(settings: dict[str, Any]) -> str:
    """Settings in one line; the empty override is the config as given."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items()) or "as given"


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
        rows += [_machine(platform, machine, ended) for machine, ended in groups.items()]
    measured = any(row["matmul_tflops"] is not None for row in rows)
    return rows if measured or len(seen) > 1 else []


def _by_machine(results: Results, platform: str) -> dict[str, list[Ended]]:
    groups: dict[str, list[Ended]] = {}
    for key, cell in results.cells.items():
        for run in cell.finished if key[0] == platform else ():
            if run.newest and run.machine:
                groups.setdefault(run.machine, []).append(run.newest)
    return {name: groups[name] for name in sorted(groups, key=lambda name: (len(name), name))}


def _machine(platform: str, machine: str, ended: list[Ended]) -> dict[str, Any]:
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
        "matmul_tflops": _preflight(ended, "matmul", "flops_per_s", 1 / TERA),
        "bus_gb_per_s": _preflight(ended, "all_reduce", "bus_bytes_per_s", 1 / GB),
        "dispatch_us": _preflight(ended, "dispatch", "s_per_call", US),
    }


def _preflight(ended: list[Ended], probe: str, figure: str, factor: float) -> float | None:
    """The median of one preflight figure over the runs, in the unit shown."""
    preflights = [e.record.measured.preflight for e in ended if e.record.measured]
    found = [value for plain in preflights if (value := number(plain, probe, figure)) is not None]
    return statistics.median(found) * factor if found else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
