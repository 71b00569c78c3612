# `snakemake --profile gke manifests`: the Job of every missing run as YAML, for review, kubectl apply or GitOps.
from bench.store import missing


rule manifests:
    log:
        f"{RESULTS}/logs/manifests.log",
    conda:
        "../envs/bench.yaml"
    params:
        folder=f"{RESULTS}/manifests",
        manifests=[spec.to_json() for spec in missing(Path(RESULTS), PLAN.specs)],
    shell:
        "echo 'manifests are written by the executor: snakemake --profile gke manifests' >&2; exit 1"
