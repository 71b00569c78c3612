"""The report: one context of plain values, two templates, the figures. Written from records alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dtbench.report.advice import choices
from dtbench.report.beside import beside
from dtbench.report.details import kernel_table, machine_rows, provenance, time_rows, trial_rows
from dtbench.report.figures import draw
from dtbench.report.findings import find_all
from dtbench.report.frontier_rows import frontier_rows, say_unusable_frontiers
from dtbench.report.render import render
from dtbench.report.sections import platform_sections, summary_rows
from dtbench.report.tables import write_tables
from dtbench.results.cells import CellResult, collect
from dtbench.results.comparison import Results
from dtbench.results.deaths import Death, find_deaths, memory_needs, survival_lines
from dtbench.results.rediagnose import load_diagnosed
from dtbench.results.runs import MISSING, Loaded, readable, say_problems
from dtbench.study.matrix import Matrix
from harness.contract.files import write_atomically
from harness.diagnosis.advice import advise

ARMS = {
    "defaults": "each engine as shipped; FSDP2 and DDP on a bf16 model keep bf16 Adam states, ZeRO keeps fp32 masters.",
    "matched": "equal numerics: fp32 masters and moments, bf16 compute, fp32 reduction, one fused AdamW, hooks off.",
    "tuned": "matched numerics, each config at the best of its declared trials, the same number for each.",
}

HEADINGS = {
    "nccl_percent": "NCCL share",
    "state_bytes": "state B/param",
    "reserved_gb": "reserved GB",
    "mfu_percent": "MFU",
    "loss": "last loss",
    "parity_percent": "loss off reference",
    "usd_per_mtoken": "$/Mtoken",
}


def build(matrix: Matrix, results_folder: Path, loaded: Loaded | None = None) -> dict[str, Any]:
    """Everything the templates show, computed; `loaded` spares reading the records again."""
    loaded = load_diagnosed(matrix, results_folder) if loaded is None else loaded
    cells = collect(loaded)
    results = Results(cells, matrix.study.platforms, matrix.study.arms)
    needs = memory_needs(cells.values())
    deaths = find_deaths(cells.values(), needs)
    lines = survival_lines(cells.values(), deaths, needs)
    origin = provenance(readable(loaded))
    chosen = choices(matrix, results)
    return {
        "name": matrix.study.name,
        "title": matrix.study.title or matrix.study.name,
        "description": matrix.study.description,
        "facts": _facts(matrix),
        "faults": bool(matrix.study.faults) or origin.faults,
        "arms": ARMS,
        "headings": HEADINGS,
        "counts": _counts(list(cells.values())),
        "choices": chosen,
        "findings": find_all(results, lines),
        "platforms": platform_sections(matrix, results),
        "summary": summary_rows(matrix, results),
        "machines": machine_rows(results),
        "beside": beside(matrix, results, results_folder),
        "time": time_rows(results),
        "kernels": kernel_table(results),
        "frontier": frontier_rows(matrix, results_folder),
        "trials": trial_rows(results),
        "deaths": deaths,
        "advices": _advices(deaths),
        "survival": lines,
        "remedy_names": ", ".join(sorted({d.cured_by for d in deaths if d.cured_by})) or "named in the record",
        "provenance": origin,
    }


def write_report(matrix: Matrix, results_folder: Path) -> Path:
    """Write the report, its figures and the tables it links to; give back the Markdown's path."""
    loaded = load_diagnosed(matrix, results_folder)
    say_problems(loaded)
    say_unusable_frontiers(matrix, results_folder)
    write_tables(matrix, results_folder, loaded)
    context = build(matrix, results_folder, loaded)
    figures = draw(context)
    for old in (results_folder / "figures").glob("*.svg"):
        if old.stem not in figures:
            old.unlink()
    for name, svg in figures.items():
        write_atomically(results_folder / "figures" / f"{name}.svg", svg)
    write_atomically(results_folder / "report.html", render("report.html.j2", context | {"figures": figures}))
    report = results_folder / "report.md"
    write_atomically(report, render("report.md.j2", context | {"figures": figures}))
    return report


def _facts(matrix: Matrix) -> str:
    s = matrix.study
    shape = f"{s.model.name}, sequence {s.data.sequence_length}, micro-batch {s.data.micro_batch}"
    if s.data.gradient_accumulation > 1:
        shape += f", {s.data.gradient_accumulation} micro-steps"
    steps = f"{s.protocol.warmup_steps} warm-up and {s.protocol.timed_steps} timed steps"
    checkpoints = ", activation checkpointing" if s.model.activation_checkpointing else ""
    return f"{shape}{checkpoints}; {steps}; {s.repeats} run{'s' if s.repeats > 1 else ''} a cell."


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
