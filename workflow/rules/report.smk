# The report. `document` waits for every record; `report` takes what there is and never starts a run.


rule document:
    input:
        RECORDS,
        rules.tables.output,
    output:
        markdown=f"{RESULTS}/report.md",
        html=f"{RESULTS}/report.html",
    params:
        **STUDY,
        matrix=MATRIX.digest,
    log:
        f"{RESULTS}/logs/document.log",
    localrule: True
    script:
        "../scripts/report.py"


rule report:
    params:
        **STUDY,
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    script:
        "../scripts/report.py"


rule plan:
    params:
        **STUDY,
        rerun=sorted(OPTIONS.rerun),
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    script:
        "../scripts/plan.py"


onsuccess:
    announce(f"{RESULTS}/report.md")
