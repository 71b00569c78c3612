# `snakemake --profile gke manifests`: the Job of every missing run as YAML, for review, kubectl apply or GitOps.


rule manifests:
    log:
        f"{RESULTS}/logs/manifests.log",
    conda:
        "../envs/dtbench.yaml"
    params:
        folder=f"{RESULTS}/manifests",
        manifests=missing_specs,
    shell:
        "echo 'manifests are written by the executor: snakemake --profile gke manifests' >&2; exit 1"
