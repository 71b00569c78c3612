# Why failed attempts ended, by the diagnosis rules of today: their logs are read again, nothing is run again.


rule diagnose:
    input:
        RECORDS,
    output:
        diagnoses=f"{RESULTS}/diagnoses.json",
    params:
        **STUDY,
    log:
        f"{RESULTS}/logs/diagnose.log",
    localrule: True
    script:
        "../scripts/diagnose.py"
