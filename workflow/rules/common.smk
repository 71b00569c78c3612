# Load the study, refuse what cannot be run, and say which attempt of each run is wanted. No rule here.
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

# The checkout's own code wins over an installed copy, here and in every job. Only an executor plugin is the installed
# one: Snakemake loads all of them before it reads this, and the contract that came along with them is forgotten again.
ROOT = Path(workflow.basedir)
LIBRARIES = [str(ROOT), str(ROOT / "workflow/lib")]
sys.path[:0] = LIBRARIES
if not (getattr(sys.modules.get("harness"), "__file__", None) or "").startswith(
    f"{ROOT}/"
):
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("harness", "dtbench")
    ]:
        del sys.modules[name]

from dtbench.bill import bill_is_due, print_bill
from dtbench.report.frontier_rows import frontier_specs
from dtbench.slurm import slurm_request
from dtbench.study.families import check_families
from dtbench.study.matrix import load_matrix
from dtbench.workflow import (
    Plan,
    check_gpus,
    check_writable,
    export_path,
    parse_config,
    relax_collector,
)
from harness.contract.errors import SpecError

relax_collector()
export_path(LIBRARIES)
try:
    OPTIONS = parse_config(config)
    MATRIX = load_matrix(OPTIONS.study, ROOT)
except SpecError as error:
    raise WorkflowError(str(error)) from None

RESULTS = f"{OPTIONS.results}/{MATRIX.study.name}"
PLAN = Plan.of(MATRIX, Path(RESULTS), OPTIONS.rerun)
try:
    # A job that another Snakemake started reads all this again: the family has been checked then.
    check_families(
        spec.model for spec in PLAN.missing.values() if "--mode" not in sys.argv
    )
except SpecError as error:
    raise WorkflowError(str(error)) from None
# A finished run is no job: the hash of its spec is in its path, so nothing about it can change, and a thousand jobs that
# do nothing would take Snakemake a second of every call.
MISSING = [f"{RESULTS}/{path}/record.json" for path in PLAN.missing]
FRONTIERS = frontier_specs(MATRIX)
STUDY = {"path": str(MATRIX.path), "root": str(ROOT), "results": RESULTS}


wildcard_constraints:
    platform="[^/]+",
    config="[^/]+",
    arm="[^/]+",
    run=r"r\d+-[0-9a-f]{12}",
    attempt=r"a\d+",


def attempt_of(wildcards):
    return "{w.platform}/{w.config}/{w.arm}/{w.run}/{w.attempt}".format(w=wildcards)


def spec_of(wildcards):
    return PLAN.spec(attempt_of(wildcards))


def priority_of(wildcards):
    return PLAN.priority(attempt_of(wildcards))


def slurm(key):
    return lambda wildcards: PLAN.slurm(attempt_of(wildcards))[key]


def frontier_of(wildcards):
    place = "frontier/{w.platform}/{w.config}/{w.arm}/{w.over}".format(w=wildcards)
    return FRONTIERS[place]


def frontier_spec_of(wildcards):
    return frontier_of(wildcards).spec.to_json()


def frontier_options_of(wildcards):
    return frontier_of(wildcards).options


def frontier_slurm(key):
    return lambda wildcards: slurm_request(frontier_of(wildcards).spec)[key]


def gke_settings(wildcards):
    return vars(workflow.executor_settings) if workflow.executor_settings else {}


def refuse_this_machine():
    runs = any(job.rule.name == "run" for job in workflow.dag.needrun_jobs())
    try:
        check_writable(RESULTS)
        if runs and workflow.local_exec:
            check_gpus(PLAN.missing.values())
    except SpecError as error:
        raise WorkflowError(str(error)) from None


def announce(report):
    if Path(report).is_file():
        print(f"Report: {report}")
