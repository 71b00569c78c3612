# Runs and cells as tables. `tables` waits for every record; `aggregate` takes what there is and never starts a run.


rule tables:
    input:
        RECORDS,
        rules.diagnose.output,
    output:
        runs=f"{RESULTS}/runs.csv",
        cells=f"{RESULTS}/cells.csv",
    params:
        **STUDY,
        matrix=MATRIX.digest,
    log:
        f"{RESULTS}/logs/tables.log",
    localrule: True
    script:
        "../scripts/aggregate.py"


rule aggregate:
    params:
        **STUDY,
    log:
        f"{RESULTS}/logs/aggregate.log",
    localrule: True
    script:
        "../scripts/aggregate.py"
