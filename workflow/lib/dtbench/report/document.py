"""The report: one context of plain values, two templates, the figures. Written from records alone."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dtbench.cloud.spent import SPENT_HEADS, read_receipts, receipt_lines, spent, spent_rows
from dtbench.report.advice import Choice, choices
from dtbench.report.charts.study import draw
from dtbench.report.charts.svg import STYLE, anchor_of, as_file
from dtbench.report.decisions import Decision, decisions
from dtbench.report.details import (
    KernelTable,
    MachineRow,
    Provenance,
    TimeRow,
    TrialRow,
    kernel_table,
    machine_rows,
    provenance,
    time_rows,
    trial_rows,
)
from dtbench.report.findings import find_all
from dtbench.report.folds import CellFold, run_folds
from dtbench.report.frontier_rows import FrontierRow, frontier_rows, say_unusable_frontiers
from dtbench.report.render import TEMPLATES, render
from dtbench.report.sections import PlatformSection, SummaryRow, platform_sections, summary_rows
from dtbench.report.sentences import Finding
from dtbench.report.tables import write_tables
from dtbench.results.cells import CellResult, collect
from dtbench.results.comparison import Beside, Results, beside
from dtbench.results.deaths import Death, SurvivalLine, find_deaths, memory_needs, survival_lines
from dtbench.results.runs import MISSING, Loaded, all_attempts, all_runs, load_runs
from dtbench.results.scaling import ScalingRow, scaling_rows
from dtbench.results.store import INDEX, scan, sources
from dtbench.study.families import counted_shape, say_parameters
from dtbench.study.matrix import Matrix
from dtbench.study.platforms import PRICES, load_prices
from harness.contract.codec import encode
from harness.contract.files import write_atomically
from harness.diagnosis.advice import advise

ARMS = {
    "defaults": "each engine as shipped; FSDP2 and DDP on a bf16 model keep bf16 Adam states, ZeRO keeps fp32 masters.",
    "matched": "equal numerics: fp32 masters and moments, bf16 compute, fp32 reduction, one fused AdamW, hooks off.",
    "tuned": "matched numerics, each config at the best of its declared trials, the same number for each.",
}

SCRIPT = (TEMPLATES / "report.js").read_text(encoding="utf-8")
"""What sorts and filters the page; it is the only script that the page's policy lets run."""
SHOWN_FINDINGS = 10
"""Findings that are not folded."""

HEADINGS = {
    "nccl_percent": "NCCL share",
    "state_bytes": "state B/param",
    "reserved_gb": "reserved GB",
    "mfu_percent": "MFU",
    "joules_per_token": "J/token",
    "watts": "W/GPU",
    "mhz": "SM MHz",
    "loss": "last loss",
    "parity_percent": "loss off reference",
    "usd_per_mtoken": "$/Mtoken",
    "gpu_hours_per_mtoken": "GPU h/Mtoken",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything the templates show, as plain values in the units shown."""

    name: str
    title: str
    description: str
    facts: str
    faults: bool
    counts: "Counts"
    choices: list[Choice]
    decisions: list[Decision]
    findings: list[Finding]
    platforms: list[PlatformSection]
    summary: list[SummaryRow]
    machines: list[MachineRow]
    beside: Beside
    scaling: list[ScalingRow]
    time: list[TimeRow]
    kernels: KernelTable
    frontier: list[FrontierRow]
    trials: list[TrialRow]
    deaths: list[Death]
    advices: dict[str, str]
    """Outcome -> what to do next."""
    survival: list[SurvivalLine]
    remedy_names: str
    provenance: Provenance
    receipts: list[str]
    """What the cloud answered to requests for machines, a line each."""
    spent: list[list[str]]
    """Rows under `SPENT_HEADS`: what nodes of GKE were held for."""
    runs: list[CellFold]
    facets: dict[tuple[str, str, str], "Facets"]
    """(platform, config, arm) -> by what its rows can be filtered, and where its runs are."""


class Facets(NamedTuple):
    """What the page's filter knows of a cell."""

    engine: str
    micro_batch: int | None
    anchor: str
    """Where the page has its runs; empty: there are none."""


def build(matrix: Matrix, results_folder: Path, loaded: Loaded | None = None) -> Report:
    """The report of the records there are; `loaded` spares reading them again."""
    loaded = load_runs(matrix, results_folder) if loaded is None else loaded
    cells = collect(loaded)
    results = Results(cells, matrix.study.platforms, matrix.study.arms)
    needs = memory_needs(cells.values())
    deaths = find_deaths(cells.values(), needs)
    lines = survival_lines(cells.values(), deaths, needs)
    origin = provenance(all_attempts(loaded))
    chosen = choices(matrix, results)
    return Report(
        name=matrix.study.name,
        title=matrix.study.title or matrix.study.name,
        description=matrix.study.description,
        facts=_facts(matrix),
        faults=bool(matrix.study.faults) or origin.faults,
        counts=_counts(list(cells.values())),
        choices=chosen,
        decisions=decisions(matrix, results, chosen),
        findings=find_all(results, lines),
        platforms=platform_sections(matrix, results),
        summary=summary_rows(matrix, results),
        machines=machine_rows(results),
        beside=beside(matrix, results, results_folder),
        scaling=scaling_rows(results, matrix.platforms),
        time=time_rows(results),
        kernels=kernel_table(results),
        frontier=frontier_rows(matrix, results_folder),
        trials=trial_rows(results),
        deaths=deaths,
        advices=_advices(deaths),
        survival=lines,
        remedy_names=", ".join(sorted({d.cured_by for d in deaths if d.cured_by})) or "named in the record",
        provenance=origin,
        receipts=receipt_lines(read_receipts(results_folder)),
        spent=spent_rows(spent(loaded, results_folder, load_prices(matrix.root / "config" / PRICES))),
        runs=run_folds(list(cells.values()), results_folder),
        facets={key: _facets(cell) for key, cell in cells.items()},
    )


def _facets(cell: CellResult) -> Facets:
    spec = cell.cell.spec
    ran = any(run.newest for run in cell.runs)
    return Facets(
        engine=spec.engine.name if spec else "",
        micro_batch=spec.data.micro_batch if spec else None,
        anchor=anchor_of(*cell.key) if ran else "",
    )


def texts(report: Report) -> dict[str, str]:
    """File below the study's results -> its text: the figures, then the HTML and the Markdown that show them."""
    figures = draw(report.platforms, report.decisions, report.time, report.survival)
    constants = {
        "arms": ARMS,
        "headings": HEADINGS,
        "shown": SHOWN_FINDINGS,
        "chart_style": STYLE,
        "script": SCRIPT,
        "spent_heads": SPENT_HEADS,
    }
    constants |= {"script_hash": base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}
    context = vars(report) | {"figures": figures} | constants
    found = {f"figures/{name}.svg": as_file(element) for name, element in figures.items()}
    return found | {name: render(f"{name}.j2", context) for name in ("report.html", "report.md")}


def write_report(matrix: Matrix, results_folder: Path) -> Path:
    """Write the report, its figures, its tables and its index from the records there are; returns the Markdown's path.

    A record that changes meanwhile makes this report stale, since what it was made from is noted before it is read.
    """
    found = scan(results_folder, matrix.runs)
    made_from = sources(matrix, found, results_folder)
    loaded = load_runs(matrix, results_folder, found)
    for problem in (run.problem for run in all_runs(loaded) if run.problem):
        print(problem)
    say_unusable_frontiers(matrix, results_folder)
    written = texts(build(matrix, results_folder, loaded))
    for stale in set((results_folder / "figures").glob("*.svg")) - {results_folder / name for name in written}:
        stale.unlink(missing_ok=True)
    for name, text in written.items():
        write_atomically(results_folder / name, text)
    tables = write_tables(matrix, results_folder, loaded)
    index = {
        "sources": made_from,
        "files": sorted([*written, *tables]),
        "attempts": {a.path: encode(a.diagnosis) for a in all_attempts(loaded) if a.diagnosis.outcome != "ok"},
    }
    write_atomically(results_folder / INDEX, json.dumps(index, indent=1, sort_keys=True) + "\n")
    return results_folder / "report.md"


def _facts(matrix: Matrix) -> str:
    s = matrix.study
    shape = f"{s.model.name}, sequence {s.data.sequence_length}, micro-batch {s.data.micro_batch}"
    if s.data.gradient_accumulation > 1:
        shape += f", {s.data.gradient_accumulation} micro-steps"
    steps = f"{s.protocol.warmup_steps} warm-up and {s.protocol.timed_steps} timed steps"
    checkpoints = ", activation checkpointing" if s.model.activation_checkpointing else ""
    return f"{shape}{checkpoints}{_peculiar(matrix)}; {steps}; {s.repeats} run{'s' if s.repeats > 1 else ''} a cell."


def _peculiar(matrix: Matrix) -> str:
    """What a reader would not expect of the study's own model: attention that is not SDPA, parameters that rest."""
    model = next((cell.spec.model for cell in matrix.cells if cell.spec), None)
    if model is None:
        return ""
    attention = "" if model.attention == "sdpa" else f", attention {model.attention}"
    shape = counted_shape(model.config)
    if shape is None or not shape.experts:
        return attention
    held, active = say_parameters(shape.parameters), say_parameters(shape.active_parameters)
    return f"{attention}, {held} parameters, of which {active} active"


class Counts(NamedTuple):
    """How much of the study there is."""

    cells: int
    runs: int
    missing: int
    """Runs without a record."""
    failed: int


def _counts(cells: Sequence[CellResult]) -> Counts:
    outcomes = [run.outcome for cell in cells for run in cell.runs]
    missing = outcomes.count(MISSING)
    return Counts(len(cells), len(outcomes), missing, failed=len(outcomes) - missing - outcomes.count("ok"))


def _advices(deaths: list[Death]) -> dict[str, str]:
    """Outcome -> what to do next; the advice of each death once."""
    found: dict[str, dict[str, None]] = {}
    for death in deaths:
        found.setdefault(death.outcome, {})[advise(death.diagnosis)] = None
    return {outcome: " ".join(advices) for outcome, advices in found.items()}
