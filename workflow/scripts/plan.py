"""Write what is still missing, most wanted first, for `python -m harness batch` and `python -m harness frontier`."""

from pathlib import Path

from bench.frontier import write_frontier_plan
from bench.matrix import Matrix
from bench.script import run
from bench.store import write_plan
from bench.workflow import selected

snakemake = globals()["snakemake"]


def write_plans(matrix: Matrix, results: Path) -> None:
    write_plan(matrix.runs, results, selected(matrix, results, frozenset(snakemake.params.rerun)))
    if matrix.study.frontier:
        write_frontier_plan(matrix, results)


run(snakemake, write_plans)
