"""Write the report, its figures and its tables from the records that exist."""

from bench.report import write_report
from bench.script import run

run(globals()["snakemake"], write_report)
