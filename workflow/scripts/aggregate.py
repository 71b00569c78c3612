"""Write runs.csv and cells.csv from the records that exist."""

from bench.script import run
from bench.tables import write_tables

run(globals()["snakemake"], write_tables)
