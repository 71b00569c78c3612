# The report. `document` waits for every record; `report` takes what there is and never starts a run.


rule document:
    input:
        rules.tables.output,
    output:
        markdown=f"{RESULTS}/report.md",
        html=f"{RESULTS}/report.html",
        stamp=f"{RESULTS}/logs/document.stamp",
        figures=LOST,
    log:
        f"{RESULTS}/logs/document.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
        matrix=MATRIX.digest,
    script:
        "../scripts/report.py"


rule report:
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
    script:
        "../scripts/report.py"


rule plan:
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
        rerun=sorted(OPTIONS.rerun),
    script:
        "../scripts/plan.py"


onstart:
    # Snakemake would end in a traceback; a preview, which writes nothing, does not come here.
    refuse_unwritable()


onsuccess:
    announce(f"{RESULTS}/report.md")
