# Why failed attempts ended, by the diagnosis rules of today: their logs are read again, nothing is run again.


rule diagnose:
    input:
        UNTOLD,
    output:
        diagnoses=f"{RESULTS}/diagnoses.json",
    log:
        f"{RESULTS}/logs/diagnose.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
        # Files may come from a machine whose clock is behind: another set of attempts is another table.
        attempts=PLAN.digest,
    script:
        "../scripts/diagnose.py"
