# Runs and cells as tables. `tables` waits for every record; `aggregate` takes what there is and never starts a run.


rule tables:
    input:
        # It waits for every record: to name them all again would cost each call as much as looking at them once.
        rules.diagnose.output,
    output:
        runs=f"{RESULTS}/runs.csv",
        cells=f"{RESULTS}/cells.csv",
        stamp=f"{RESULTS}/logs/tables.stamp",
    log:
        f"{RESULTS}/logs/tables.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
        matrix=MATRIX.digest,
    script:
        "../scripts/aggregate.py"


rule aggregate:
    log:
        f"{RESULTS}/logs/aggregate.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
    script:
        "../scripts/aggregate.py"
