"""Write frontier.csv, prediction beside measurement."""

from dtbench.report.frontier_rows import write_frontier
from dtbench.script import run

run(globals()["snakemake"], write_frontier)
