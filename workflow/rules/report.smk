# From records to the report: one rule, which loads study and records once and writes everything that is made from them.


rule report:
    # No input: it takes the records there are and never starts a run. No output: it is made whenever it is asked for, and
    # Snakemake would delete the old report before the new one is written. `Plan.reported` tells `all` whether to ask.
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
    script:
        "../scripts/report.py"


onstart:
    # Snakemake would end in a traceback; a preview, which writes nothing, does not come here.
    refuse_this_machine()
    if bill_is_due() and any(
        job.rule.name == "run" for job in workflow.dag.needrun_jobs()
    ):
        print_bill(MATRIX, Path(RESULTS), OPTIONS.rerun)


onsuccess:
    announce(f"{RESULTS}/report.md")
