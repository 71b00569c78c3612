"""Write what is still missing, most wanted first, for `python -m harness batch` and `python -m harness frontier`."""

from pathlib import Path

from dtbench.bill import bill_is_due, print_bill
from dtbench.report.frontier_rows import write_frontier_plan
from dtbench.results.store import write_plan
from dtbench.script import run
from dtbench.study.matrix import Matrix
from dtbench.workflow import Plan

snakemake = globals()["snakemake"]


def write_plans(matrix: Matrix, results: Path) -> None:
    rerun = frozenset(snakemake.params.rerun)
    if bill_is_due():
        print_bill(matrix, results, rerun)
    write_plan(results, Plan.of(matrix, results, rerun).missing, matrix.groups)
    if matrix.study.frontier:
        write_frontier_plan(matrix, results)


run(snakemake, write_plans)
