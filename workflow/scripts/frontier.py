"""Become the search for one fit frontier, tied to the life of the Snakemake that asked for it."""

from dtbench.launch import become_search

snakemake = globals()["snakemake"]
become_search(snakemake.params.spec, snakemake.output.result, snakemake.params.options, snakemake.log[0])
