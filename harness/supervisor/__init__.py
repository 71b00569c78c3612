"""Launches the ranks of one run, watches them and builds the record. Never imports torch.

attempt.py      one attempt: its tries, the remedy, the record
launch.py       launcher command lines and the ranks' environment
lean.py         starts a launcher without the imports that it does not use
rank.py         one rank's wrapper: own log, own exit file, bound to the launcher's life
processes.py    signals to us; start a launcher, end every descendant
watch.py        waits for the launcher's end, a signal, the deadline or a stall; dumps stacks of hanging ranks
progress.py     which rank still makes progress, and the progress lines
collect.py      the run's numbers out of the ranks'
environment.py  versions, hardware, variables, without secrets
telemetry.py    NVML beside the run
folder.py       the attempt's folder: lock, clean, list, record
extensions.py   DeepSpeed's compiled operators: build them, remove abandoned locks
"""
