"""Write the report, its figures and its tables from the records that exist."""

from dtbench.report.document import write_report
from dtbench.script import run

run(globals()["snakemake"], write_report)
