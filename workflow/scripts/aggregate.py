"""Write runs.csv and cells.csv from the records that exist."""

from pathlib import Path

from bench.matrix import Matrix
from bench.rediagnose import load_diagnosed
from bench.runs import say_problems
from bench.script import run
from bench.tables import write_tables

snakemake = globals()["snakemake"]


def aggregate(matrix: Matrix, results: Path) -> None:
    loaded = load_diagnosed(matrix, results)
    # The report follows on the rule `tables`, and says it then.
    if snakemake.rule == "aggregate":
        say_problems(loaded)
    write_tables(matrix, results, loaded)


run(snakemake, aggregate)
