"""Write frontier.csv, prediction beside measurement."""

from bench.frontier import write_frontier
from bench.script import run

run(globals()["snakemake"], write_frontier)
