# Load the study, refuse what cannot be run, and say which attempt of each run is wanted. No rule here.
import sys

from snakemake.exceptions import WorkflowError

from bench.matrix import load_matrix
from bench.workflow import Plan, parse_config
from harness.contract.errors import SpecError

try:
    OPTIONS = parse_config(config)
    MATRIX = load_matrix(OPTIONS.study, Path(workflow.basedir))
except SpecError as error:
    raise WorkflowError(str(error)) from None

RESULTS = f"{OPTIONS.results}/{MATRIX.study.name}"
PLAN = Plan.of(MATRIX, Path(RESULTS), OPTIONS.rerun)
RECORDS = [f"{RESULTS}/{path}/record.json" for path in PLAN.specs]
STUDY = {"study": str(MATRIX.path), "root": workflow.basedir, "results": RESULTS}


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


def gpus_of(wildcards):
    return PLAN.gpus(attempt_of(wildcards))
