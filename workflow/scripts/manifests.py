"""Write the Kubernetes Job of every missing run as YAML, and submit nothing."""

from pathlib import Path

from dtbench.script import run
from dtbench.study.matrix import Matrix
from dtbench.workflow import Plan
from snakemake_executor_plugin_gke.manifest import write_manifests
from snakemake_executor_plugin_gke.settings import ExecutorSettings, check_settings
from snakemake_interface_common.exceptions import WorkflowError

from harness.contract.errors import SpecError

snakemake = globals()["snakemake"]


def manifests(matrix: Matrix, results: Path) -> None:
    if not snakemake.params.gke:
        raise SpecError("manifests: found another executor; expected snakemake --profile gke manifests")
    settings = ExecutorSettings(**snakemake.params.gke)
    try:
        check_settings(settings)
    except WorkflowError as error:
        raise SpecError(str(error)) from None
    missing = Plan.of(matrix, results, frozenset(snakemake.params.rerun)).missing
    written = write_manifests(missing.values(), settings, results / "manifests")
    print(f"{len(written)} Jobs written to {results / 'manifests'}, none submitted")


run(snakemake, manifests)
