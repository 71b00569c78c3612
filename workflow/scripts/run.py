"""Become the supervisor of one run, or the search for one frontier, tied to the life of the Snakemake that asked."""

from dtbench.script import become_harness

snakemake = globals()["snakemake"]
command = {"run": "run", "search": "frontier"}[snakemake.rule]
options = snakemake.params.get("options", ())
cpus = snakemake.resources.cpus_per_task
become_harness(command, snakemake.params.spec, snakemake.output[0], options, snakemake.log[0], cpus)
