# One attempt of one run: the supervisor trains, watches and writes the record, whatever happens.


rule run:
    output:
        # update(): a finished record is never deleted because Snakemake was killed before it took note.
        record=update(f"{RESULTS}/{{platform}}/{{config}}/{{arm}}/{{run}}/{{attempt}}/record.json"),
    params:
        spec=spec_of,
    log:
        f"{RESULTS}/{{platform}}/{{config}}/{{arm}}/{{run}}/{{attempt}}.log",
    priority: priority_of
    resources:
        gpu=gpus_of,
        bench_slot=1,
    shell:
        "exec {sys.executable} workflow/scripts/run.py {params.spec:q} {output.record:q} > >(tee {log:q}) 2>&1"
