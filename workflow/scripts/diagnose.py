"""Read the logs of failed attempts again, by the diagnosis rules of today."""

from dtbench.results.rediagnose import write_diagnoses
from dtbench.script import run

run(globals()["snakemake"], write_diagnoses)
