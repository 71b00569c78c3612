"""Launches the ranks of one run, watches them and writes the record. Never imports torch.

run.py          from a spec file to a delivered record and an exit status
attempt.py      one attempt: its tries, the remedy, the record
launch.py       launcher command lines and the ranks' environment
guard.py        the launcher, bound to the supervisor's life
rank.py         one rank's wrapper: own log, own exit file, bound to the launcher's life
deathsig.py     the kernel's part in both
processes.py    start a launcher, end every descendant
watch.py        until the launcher ends, a signal, the deadline or a stall
progress.py     which rank still moves (pure)
dumps.py        stacks, py-spy, flight recorder of ranks that hang
collect.py      the run's numbers out of the ranks'
environment.py  versions, hardware (host.py), variables, without secrets
telemetry.py    NVML beside the run
folder.py       the attempt's folder: lock, clean, list, record
upload.py       into a bucket, the record last
batch.py        many specs inside a time budget
setup.py        compile DeepSpeed's operators once
"""
