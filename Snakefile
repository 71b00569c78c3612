# DeepSpeed ZeRO or PyTorch FSDP2? One study of training runs, from its YAML to a report.
#
#     snakemake --profile local                                 run the quick study here
#     snakemake --profile local --config study=NAME             another study of config/
#     snakemake --profile local report                          rebuild the report from cached records
#     snakemake --profile local --config rerun=failed           next attempt of failed runs; -n previews
#     snakemake --profile local frontier --config study=NAME    largest micro-batch or sequence that fits
#     snakemake --profile local --report FILE.html              Snakemake's own report around ours, when all has run
#     snakemake --profile local plan                            write the missing runs for `python -m harness batch`
from snakemake.utils import min_version

min_version("9.0")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/run.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/frontier.smk"


if (MISSING or not PLAN.reported) and not REPORTING:

    # The missing runs, then the report of all of them.
    use rule report as all with:
        default_target: True
        input:
            MISSING,
        log:
            f"{RESULTS}/logs/all.log",

else:

    rule all:
        default_target: True
        input:
            f"{RESULTS}/report.md",
            SHOWN if REPORTING else [],
        localrule: True
