"""Read the logs of failed attempts again, by the diagnosis rules of today."""

from bench.rediagnose import write_diagnoses
from bench.script import run

run(globals()["snakemake"], write_diagnoses)
