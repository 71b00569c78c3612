"""Write the runs that are still missing, most wanted first, for `python -m harness batch`."""

from bench.script import run
from bench.store import write_plan

snakemake = globals()["snakemake"]
run(snakemake, lambda matrix, results: write_plan(matrix.runs, results, frozenset(snakemake.params.rerun)))
