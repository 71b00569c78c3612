# The fit frontier: the largest micro-batch or longest sequence of each cell that fits. Not part of `all`.


rule search:
    output:
        result=f"{RESULTS}/frontier/{{platform}}/{{config}}/{{arm}}/{{over}}/frontier.json",
    log:
        # A link to {over}.log beside the folder of the search, as in run.smk.
        f"{RESULTS}/logs/frontier/{{platform}}/{{config}}/{{arm}}/{{over}}.log",
    wildcard_constraints:
        over="micro_batch|sequence_length",
    conda:
        "../envs/dtbench.yaml"
    resources:
        nodes=frontier_slurm("nodes"),
        tasks=frontier_slurm("tasks"),
        mpi=frontier_slurm("mpi"),
        gres=frontier_slurm("gres"),
        tasks_per_gpu=frontier_slurm("tasks_per_gpu"),
        cpus_per_task=frontier_slurm("cpus_per_task"),
        mem_mb=frontier_slurm("mem_mb"),
        runtime=frontier_slurm("runtime"),
        bench_slot=1,
    params:
        spec=frontier_spec_of,
        options=frontier_options_of,
    script:
        "../scripts/run.py"


rule frontier:
    input:
        [f"{RESULTS}/{place}/frontier.json" for place in FRONTIERS],
    output:
        f"{RESULTS}/frontier.csv",
    log:
        f"{RESULTS}/logs/frontier.log",
    localrule: True
    conda:
        "../envs/dtbench.yaml"
    params:
        study=STUDY,
        matrix=MATRIX.digest,
    script:
        "../scripts/frontier.py"
