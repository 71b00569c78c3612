"""Write the report and all that belongs to it from the records that exist."""

from dtbench.report.document import write_report
from dtbench.script import run

run(globals()["snakemake"], write_report)
