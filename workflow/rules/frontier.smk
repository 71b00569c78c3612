# The fit frontier: the largest micro-batch or longest sequence of each cell that fits. Not part of `all`.
from bench.frontier import frontier_targets

FRONTIERS = frontier_targets(MATRIX)


def frontier_of(wildcards):
    return FRONTIERS[
        "frontier/{w.platform}/{w.config}/{w.arm}/{w.over}".format(w=wildcards)
    ]


rule climb:
    output:
        result=f"{RESULTS}/frontier/{{platform}}/{{config}}/{{arm}}/{{over}}/frontier.json",
    log:
        f"{RESULTS}/frontier/{{platform}}/{{config}}/{{arm}}/{{over}}.log",
    wildcard_constraints:
        over="micro_batch|sequence_length",
    conda:
        "../envs/bench.yaml"
    resources:
        gpu=lambda wildcards: frontier_of(wildcards).gpus,
        bench_slot=1,
    params:
        spec=lambda wildcards: frontier_of(wildcards).spec.to_json(),
        options=lambda wildcards: frontier_of(wildcards).options,
    script:
        "../scripts/frontier.py"


rule frontier:
    input:
        [f"{RESULTS}/{place}/frontier.json" for place in FRONTIERS],
    output:
        f"{RESULTS}/frontier.csv",
    log:
        f"{RESULTS}/logs/frontier.log",
    localrule: True
    conda:
        "../envs/bench.yaml"
    params:
        study=STUDY,
        matrix=MATRIX.digest,
    script:
        "../scripts/frontier_table.py"
