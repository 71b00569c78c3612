"""Write runs.csv and cells.csv from the records that exist."""

from pathlib import Path

from dtbench.report.tables import write_tables
from dtbench.results.rediagnose import load_diagnosed
from dtbench.results.runs import say_problems
from dtbench.script import run
from dtbench.study.matrix import Matrix

snakemake = globals()["snakemake"]


def aggregate(matrix: Matrix, results: Path) -> None:
    loaded = load_diagnosed(matrix, results)
    # The report follows on the rule `tables`, and says it then.
    if snakemake.rule == "aggregate":
        say_problems(loaded)
    write_tables(matrix, results, loaded)


run(snakemake, aggregate)
