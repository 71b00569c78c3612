# One attempt of one run: the supervisor trains, watches and writes the record, whatever happens.


rule run:
    output:
        # update(): a finished record is never deleted because Snakemake was killed before it took note.
        record=update(
            f"{RESULTS}/{{platform}}/{{config}}/{{arm}}/{{run}}/{{attempt}}/record.json"
        ),
    log:
        # A link to {attempt}.log beside the attempt's folder, which holds what the run says: dtbench/launch.py tells why.
        f"{RESULTS}/logs/runs/{{platform}}/{{config}}/{{arm}}/{{run}}/{{attempt}}.log",
    priority: priority_of
    conda:
        "../envs/dtbench.yaml"
    resources:
        gpu=gpus_of,
        cpus_per_task=cpus_of,
        bench_slot=1,
    params:
        spec=spec_of,
    script:
        "../scripts/run.py"
