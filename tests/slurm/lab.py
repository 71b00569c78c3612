"""A Slurm cluster on this machine: the real munged, slurmctld and one slurmd a node, without systemd or accounting.

Needs root and Debian's slurm-wlm. The configuration must lie where Slurm looks for it, because the Slurm executor
takes SLURM_* out of its jobs' environment; a machine that has one of its own is left alone.
"""

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIGURATION = Path("/etc/slurm/slurm.conf")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
START_TIMEOUT_S = 60

TEMPLATE = """
ClusterName=lab
SlurmctldHost={host}
SlurmUser=root
SlurmctldPort=26817
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MinJobAge=3600
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why no lab can be started here; None when it can."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        return f"found no {', '.join(missing)}; install Debian's slurm-wlm"
    if os.geteuid() != 0:
        return "needs root to run slurmctld and slurmd"
    if CONFIGURATION.exists():
        return f"{CONFIGURATION} exists: this machine has a Slurm of its own"
    return None


def ask(*command: str) -> str:
    """Output of one Slurm command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def lab(folder: Path, cpus: int, nodes: int = 1) -> Iterator[None]:
    """Start the cluster, wait until its nodes are idle, stop it afterwards. Jobs share `cpus` cores a node."""
    host = socket.gethostname()
    # Slurm sorts by name, and only the first, which is this host's, resolves to an address.
    names = [host, *(f"{host}x{index}" for index in range(1, nodes))]
    lines = (
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={26818 + index} CPUs={cpus} RealMemory=64000"
        for index, name in enumerate(names)
    )
    for name in ("state", *(f"spool-{name}" for name in names)):
        (folder / name).mkdir()
    CONFIGURATION.parent.mkdir(exist_ok=True)
    CONFIGURATION.write_text(TEMPLATE.format(host=host, folder=folder, nodes="\n".join(lines)), encoding="utf-8")
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_munged())
        daemons = {"slurmctld": ["slurmctld"]} | {f"slurmd-{name}": ["slurmd", "-N", name] for name in names}
        for name, (program, *options) in daemons.items():
            log = (folder / f"{name}.log").open("wb")
            started.append(subprocess.Popen([f"/usr/sbin/{program}", "-D", *options], stdout=log, stderr=log))
        _wait_until_idle(folder, nodes)
        yield
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=30)
        CONFIGURATION.unlink()


def _munged() -> subprocess.Popen[bytes]:
    munge = pwd.getpwnam("munge")
    run = Path("/run/munge")
    run.mkdir(exist_ok=True)
    os.chown(run, munge.pw_uid, munge.pw_gid)
    # A daemon that runs already keeps its socket; the second one then ends at once, which does no harm.
    return subprocess.Popen(
        ["/usr/sbin/munged", "--foreground"], user="munge", group="munge", stderr=subprocess.DEVNULL
    )


def _wait_until_idle(folder: Path, nodes: int) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until_s:
        answer = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, check=False)
        if answer.stdout.split() == ["idle"] * nodes:
            return
        time.sleep(0.5)
    logs = "\n".join(p.read_text(errors="replace")[-2000:] for p in sorted(folder.glob("*.log")))
    raise TimeoutError(f"the node was not idle after {START_TIMEOUT_S} s\n{logs}")
