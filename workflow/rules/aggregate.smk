# Runs and cells as tables. `tables` waits for every record; `aggregate` takes what there is and never starts a run.


rule tables:
    input:
        RECORDS,
        rules.diagnose.output,
    output:
        runs=f"{RESULTS}/runs.csv",
        cells=f"{RESULTS}/cells.csv",
    log:
        f"{RESULTS}/logs/tables.log",
    localrule: True
    conda:
        "../envs/bench.yaml"
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
        "../envs/bench.yaml"
    params:
        study=STUDY,
    script:
        "../scripts/aggregate.py"
