# Why failed attempts ended, by the diagnosis rules of today: their logs are read again, nothing is run again.


rule diagnose:
    input:
        RECORDS,
    output:
        diagnoses=f"{RESULTS}/diagnoses.json",
    log:
        f"{RESULTS}/logs/diagnose.log",
    localrule: True
    conda:
        "../envs/bench.yaml"
    params:
        study=STUDY,
    script:
        "../scripts/diagnose.py"
