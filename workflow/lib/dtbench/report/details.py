"""The tables below those of the platforms, in the units shown: time, kernels, trials, machines, provenance."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dtbench.results import numbers as c
from dtbench.results.cells import CellResult
from dtbench.results.comparison import Results
from dtbench.results.numbers import number
from dtbench.results.runs import Attempt
from dtbench.results.stats import summarize
from harness.contract.measured import Trial, settings_text
from harness.contract.units import GB

MS = 1000
PERCENT = 100
US = 10**6
TERA = 10**12

TIME_SHARES = ("compute", "comm_exposed", "copy_exposed", "idle")
"""Parts of a step in the profiled pass; together the whole of it."""
MOST_ROWS = 8
"""Above this many machines a platform has one row for all: on Kubernetes every run may get a node of its own."""


class TimeRow(NamedTuple):
    """Where a cell's step goes: percent of a profiled step, mean over runs."""

    platform: str
    config: str
    arm: str
    compute: float
    comm_exposed: float
    copy_exposed: float
    idle: float
    nccl_percent: float | None
    waiting_percent: float | None
    """Percent of NCCL's kernel time."""
    profiled_ms: float | None
    timed_ms: float | None
    timed_compute: float | None
    """Percent of the timed step."""
    timed_idle: float | None
    """Percent of the timed step, at least."""
    busy_ms: float | None
    """GPU-busy time of a step."""
    dispatch_ms: float | None
    """Host time of a profiled step, without its waits for the device."""


def time_rows(results: Results) -> list[TimeRow]:
    """One row per cell with a profiled pass."""
    rows = []
    for key, result in results.cells.items():
        means = [result.mean(c.profile_value(f"shares.{name}")) for name in TIME_SHARES]
        shares = [share * PERCENT for share in means if share is not None]
        if len(shares) == len(TIME_SHARES):
            compute, comm_exposed, copy_exposed, idle = shares
            rows.append(
                TimeRow(
                    *key,
                    compute=compute,
                    comm_exposed=comm_exposed,
                    copy_exposed=copy_exposed,
                    idle=idle,
                    nccl_percent=_scaled(result.median(c.nccl_share), PERCENT),
                    waiting_percent=_scaled(result.median(c.nccl_waiting), PERCENT),
                    profiled_ms=_scaled(result.mean(c.profiled_step_s), MS),
                    timed_ms=_scaled(result.mean(c.step_time_s), MS),
                    timed_compute=_scaled(result.mean(c.timed_share("compute")), PERCENT),
                    timed_idle=_scaled(result.mean(c.timed_share("idle")), PERCENT),
                    busy_ms=_scaled(result.mean(c.gpu_busy_s), MS),
                    dispatch_ms=_scaled(result.mean(c.dispatch_s), MS),
                )
            )
    return rows


class KernelRow(NamedTuple):
    """What the compute of one cell's step is made of."""

    platform: str
    config: str
    arm: str
    ms: dict[str, float]
    """Kind of kernel -> milliseconds per profiled step."""


class KernelTable(NamedTuple):
    """Kernel time by kind; both parts are empty when no run was profiled."""

    kinds: list[str]
    """Longest first over all rows."""
    rows: list[KernelRow]


def kernel_table(results: Results) -> KernelTable:
    """One row per cell whose profiled passes saw kernels."""
    rows = []
    totals: dict[str, float] = {}
    for key, result in results.cells.items():
        kinds = result.kernel_kinds()
        ms = {kind: _scaled(result.median(c.profile_value(f"kernel_kinds_s.{kind}")), MS) or 0.0 for kind in kinds}
        for kind, value in ms.items():
            totals[kind] = totals.get(kind, 0.0) + value
        if ms:
            rows.append(KernelRow(*key, ms))
    return KernelTable(sorted(totals, key=lambda kind: -totals[kind]), rows)


class TrialRow(NamedTuple):
    """One trial of a tuned cell, over the newest attempts of its runs."""

    platform: str
    config: str
    arm: str
    settings: str
    tokens_per_s: float | None
    kept: int
    """Runs that kept it."""
    runs: int
    """Runs that tried it."""
    outcomes: list[str]


def trial_rows(results: Results) -> list[TrialRow]:
    """What was tried in the tuned arm, how fast it was and how often it was kept."""
    return [row for result in results.cells.values() for row in _trials(result)]


def _trials(result: CellResult) -> Iterable[TrialRow]:
    records = [run.newest.record for run in result.runs if run.newest]
    groups: dict[str, list[Trial]] = {}
    for trial in (t for r in records if r.measured for t in r.measured.search or ()):
        groups.setdefault(settings_text(trial.settings), []).append(trial)
    for settings, trials in groups.items():
        summary = summarize(t.tokens_per_s for t in trials)
        yield TrialRow(
            *result.key,
            settings=settings,
            tokens_per_s=summary.median if summary else None,
            kept=sum(t.kept for t in trials),
            runs=len(trials),
            outcomes=sorted({t.outcome for t in trials}),
        )


class MachineRow(NamedTuple):
    """One machine as the preflights of its runs found it: measured, not read from a data sheet."""

    platform: str
    machine: str
    first: str
    """Start of the first run that counts."""
    runs: int
    device: str | None
    cores: int | None
    driver: str | None
    matmul_tflops: float | None
    bus_gb_per_s: float | None
    node_bus_gb_per_s: float | None
    """The same inside the slowest of several nodes."""
    dispatch_us: float | None


def machine_rows(results: Results) -> list[MachineRow]:
    """One row per platform and machine; empty when there is one machine and no preflight."""
    rows: list[MachineRow] = []
    seen: set[str] = set()
    for platform in results.platforms:
        groups = _by_machine(results, platform)
        seen |= groups.keys()
        if len(groups) > MOST_ROWS:
            groups = {f"{len(groups)} machines": [ended for group in groups.values() for ended in group]}
        rows += [_machine(platform, machine, ended) for machine, ended in groups.items()]
    measured = any(row.matmul_tflops is not None for row in rows)
    return rows if measured or len(seen) > 1 else []


def _by_machine(results: Results, platform: str) -> dict[str, list[Attempt]]:
    groups: dict[str, list[Attempt]] = {}
    for key, cell in results.cells.items():
        for run in cell.finished if key[0] == platform else ():
            if run.newest and run.machine:
                groups.setdefault(run.machine, []).append(run.newest)
    return {name: groups[name] for name in sorted(groups, key=lambda name: (len(name), name))}


def _machine(platform: str, machine: str, ended: list[Attempt]) -> MachineRow:
    environments = [e.record.environment for e in ended if e.record.environment]
    host = environments[0].host if environments else {}
    cores, driver = number(host, "cores"), host.get("gpu_driver")
    return MachineRow(
        platform=platform,
        machine=machine,
        first=min(e.record.started_at or "" for e in ended),
        runs=len(ended),
        device=environments[0].device_name if environments else None,
        cores=None if cores is None else int(cores),
        driver=driver if isinstance(driver, str) else None,
        matmul_tflops=_preflight(ended, "matmul", "flops_per_s", 1 / TERA),
        bus_gb_per_s=_preflight(ended, "all_reduce", "bus_bytes_per_s", 1 / GB),
        node_bus_gb_per_s=_slowest_node(ended),
        dispatch_us=_preflight(ended, "dispatch", "s_per_call", US),
    )


def _preflight(ended: list[Attempt], probe: str, figure: str, factor: float) -> float | None:
    """The median of one preflight figure over the runs, in the unit shown."""
    preflights = [e.record.measured.preflight for e in ended if e.record.measured]
    found = [value for plain in preflights if (value := number(plain, probe, figure)) is not None]
    return statistics.median(found) * factor if found else None


def _slowest_node(ended: list[Attempt]) -> float | None:
    """The bus bandwidth inside the slowest node in GB/s, as the median over the runs."""
    plain = [(e.record.measured.preflight or {}).get("bus_bytes_per_s_by_node") for e in ended if e.record.measured]
    nodes = [[number(rate) for rate in rates] for rates in plain if isinstance(rates, list)]
    found = [min(known) for rates in nodes if (known := [rate for rate in rates if rate is not None])]
    return statistics.median(found) / GB if found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where the numbers come from."""

    attempts: int
    """Attempts with a record."""
    tries: int
    sources: list[str]
    versions: dict[str, list[str]]
    devices: list[str]
    commits: list[str]
    first: str | None
    """Start of the first attempt."""
    last: str | None
    notes: list[str]
    faults: bool
    """Whether any run injected faults."""


def provenance(ended: Iterable[Attempt]) -> Provenance:
    """Sources, versions, devices, commits, dates and counts of all attempts."""
    records = [e.record for e in ended]
    environments = [record.environment for record in records if record.environment]
    versions: dict[str, set[str]] = {}
    for environment in environments:
        for name, version in environment.versions.items():
            versions.setdefault(name, set()).add(version)
    dates = sorted(record.started_at for record in records if record.started_at)
    return Provenance(
        attempts=len(records),
        tries=sum(len(record.tries) for record in records),
        sources=sorted({record.source for record in records if record.source}),
        versions={name: sorted(found) for name, found in sorted(versions.items())},
        devices=sorted({e.device_name for e in environments if e.device_name}),
        commits=sorted({e.git_commit for e in environments if e.git_commit}),
        first=dates[0] if dates else None,
        last=dates[-1] if dates else None,
        notes=sorted({note for record in records for note in record.notes}),
        faults=any(record.spec.faults for record in records),
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
