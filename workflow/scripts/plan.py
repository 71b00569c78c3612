"""Write what is still missing, most wanted first, for `python -m harness batch` and `python -m harness frontier`."""

from pathlib import Path

from dtbench.bill import bill_is_due, print_bill
from dtbench.script import run
from dtbench.study.matrix import Matrix
from dtbench.workflow import write_plans

snakemake = globals()["snakemake"]


def plan(matrix: Matrix, results: Path) -> None:
    rerun = frozenset(snakemake.params.rerun)
    if bill_is_due():
        print_bill(matrix, results, rerun)
    write_plans(matrix, results, rerun)


run(snakemake, plan)
