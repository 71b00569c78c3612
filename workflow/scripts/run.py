"""Become the supervisor of one run, tied to the life of the Snakemake that asked for it."""

from dtbench.launch import become_supervisor

snakemake = globals()["snakemake"]
become_supervisor(snakemake.params.spec, snakemake.output.record, snakemake.log[0])
