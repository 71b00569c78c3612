# One attempt of one run: the supervisor trains, watches and writes the record, whatever happens.


rule run:
    output:
        # update(): a finished record is never deleted because Snakemake was killed before it took note.
        record=update(
            f"{RESULTS}/{{platform}}/{{config}}/{{arm}}/{{run}}/{{attempt}}/record.json"
        ),
    log:
        # A link to {attempt}.log beside the attempt's folder, which holds what the run says: dtbench/script.py tells why.
        f"{RESULTS}/logs/runs/{{platform}}/{{config}}/{{arm}}/{{run}}/{{attempt}}.log",
    priority: priority_of
    conda:
        "../envs/dtbench.yaml"
    resources:
        nodes=slurm("nodes"),
        tasks=slurm("tasks"),
        mpi=slurm("mpi"),
        gres=slurm("gres"),
        tasks_per_gpu=slurm("tasks_per_gpu"),
        cpus_per_task=slurm("cpus_per_task"),
        mem_mb=slurm("mem_mb"),
        runtime=slurm("runtime"),
        bench_slot=1,
    params:
        spec=spec_of,
    script:
        "../scripts/run.py"


rule plan:
    # The missing runs for `python -m harness batch`, on a machine without Snakemake.
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


rule manifests:
    # `snakemake --profile gke manifests`: the Job of each missing run as YAML, for review, kubectl apply or GitOps.
    log:
        f"{RESULTS}/logs/manifests.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
        rerun=sorted(OPTIONS.rerun),
        gke=gke_settings,
    script:
        "../scripts/manifests.py"
