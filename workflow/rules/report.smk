# From records to the report: one rule, which loads study and records once and writes everything that is made from them.


rule report:
    # No input: it takes the records there are and never starts a run. No output: it is made whenever it is asked for, and
    # Snakemake would delete the old report before the new one is written. `Plan.reported` tells `all` whether to ask.
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    # Whole paths, because `all` takes them over in another file.
    conda:
        f"{ROOT}/workflow/envs/dtbench.yaml"
    params:
        study=STUDY,
    script:
        f"{ROOT}/workflow/scripts/report.py"


SHOWN = [
    f"{RESULTS}/{name}"
    for name in (
        "report.html",
        "figures/throughput.svg",
        "figures/memory.svg",
        "cells.csv",
        "runs.csv",
    )
]
"""What `snakemake --report` shows of a study."""
REPORTING = any(word.partition("=")[0] == "--report" for word in sys.argv)

if REPORTING and not PLAN.reported:
    raise WorkflowError(
        f"{RESULTS}: found no report of the records as they are; make it first: "
        f"snakemake --profile local report --config study={OPTIONS.study}"
    )

if REPORTING:

    # Never run, since its files are there: it tells `snakemake --report` what they are. Other calls do without, as they
    # would say that Snakemake did not make these files.
    use rule report as shown with:
        output:
            report(
                SHOWN[0],
                caption="../report/report.rst",
                category="Report",
                labels={"shows": "everything"},
            ),
            report(
                SHOWN[1],
                caption="../report/throughput.rst",
                category="Figures",
                labels={"shows": "throughput"},
            ),
            report(
                SHOWN[2],
                caption="../report/memory.rst",
                category="Figures",
                labels={"shows": "peak memory"},
            ),
            report(
                SHOWN[3],
                caption="../report/cells.rst",
                category="Tables",
                labels={"shows": "cells"},
            ),
            report(
                SHOWN[4],
                caption="../report/runs.rst",
                category="Tables",
                labels={"shows": "runs"},
            ),


onstart:
    # Snakemake would end in a traceback; a preview, which writes nothing, does not come here.
    refuse_this_machine()
    if bill_is_due() and any(
        job.rule.name == "run" for job in workflow.dag.needrun_jobs()
    ):
        print_bill(MATRIX, Path(RESULTS), OPTIONS.rerun)


onsuccess:
    announce(f"{RESULTS}/report.md")
