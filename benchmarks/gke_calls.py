"""API calls and seconds per poll: executor gke beside snakemake-executor-plugin-kubernetes, on one real API server.

    python benchmarks/gke_calls.py [--jobs 20 100] [--seconds 60]
    python benchmarks/gke_calls.py --jobs 500 --alone      # how long 500 Jobs take to be made

Starts the test control plane (tests/cluster/build.sh; no nodes, so every Job waits), lets each executor
submit the same number of Jobs, and counts in the API server's audit log what each asks while nothing
changes. The other plugin is installed with its own Snakemake into a virtual environment of its own,
so that nothing of it can reach this one; it gets its shipped defaults.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.lab.bucket import NAME, FaultyBucket  # noqa: E402
from tests.cluster.lab.client import IMAGE, Clone, light_study  # noqa: E402
from tests.cluster.lab.kube import Kube  # noqa: E402
from tests.cluster.lab.plane import ControlPlane  # noqa: E402
from tests.cluster.lab.process import start, stop, until  # noqa: E402

PEER = ("snakemake==9.27.1", "snakemake-executor-plugin-kubernetes==0.5.1", "snakemake-storage-plugin-gcs==1.1.4")
POLL_S = 5
PEER_SNAKEFILE = """
rule all:
    input: expand("out/{{n}}.txt", n=range({jobs}))
rule run:
    output: "out/{{n}}.txt"
    shell: "echo {{wildcards.n}} > {{output}}"
"""


def main() -> None:
    """Run both, print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch each executor wait")
    parser.add_argument("--alone", action="store_true", help="leave the other plugin out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gke-calls-") as folder:
        home = Path(folder)
        binary = Path(
            subprocess.run([ROOT / "tests/cluster/build.sh"], check=True, stdout=-1, text=True).stdout.strip()
        )
        plane, bucket = ControlPlane(binary, home / "cluster", audit=True), FaultyBucket(home / "bucket")
        try:
            plane.start()
            bucket.start()
            peer = None if options.alone else install_peer(home / "peer-venv")
            rows = []
            for jobs in options.jobs:
                rows.append(measure("gke", ours(home, plane, bucket, jobs), plane, jobs, options.seconds))
                if peer:
                    other = theirs(home, plane, bucket, peer, jobs)
                    rows.append(measure("kubernetes 0.5.1", other, plane, jobs, options.seconds))
        finally:
            bucket.stop()
            plane.stop()
    print(table(rows))


def install_peer(venv: Path) -> Path:
    """Make the other plugin's environment; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEER], check=True)
    return python


def namespace(plane: ControlPlane, name: str) -> Kube:
    """A namespace of its own for one measurement."""
    kube = Kube(str(plane.kubeconfig), name)
    kube.make_namespace()
    until(kube.has_service_account, 30, "the namespace's service account")
    return kube


def ours(home: Path, plane: ControlPlane, bucket: FaultyBucket, jobs: int) -> tuple[Kube, subprocess.Popen[bytes]]:
    """Start executor gke on `jobs` runs."""
    kube = namespace(plane, f"gke-{jobs}")
    environment = {
        "KUBECONFIG": str(plane.kubeconfig), "STORAGE_EMULATOR_HOST": bucket.endpoint,
        "SNAKEMAKE_GKE_NAMESPACE": kube.namespace, "SNAKEMAKE_GKE_IMAGE": IMAGE,
        "SNAKEMAKE_GKE_BUCKET": f"gs://{NAME}/{jobs}", "SNAKEMAKE_GKE_POLL_INTERVAL": str(POLL_S),
    }  # fmt: skip
    clone = Clone(home / kube.namespace, environment)
    clone.write_study("lab", light_study(repeats=jobs))
    return kube, clone.start("--until", "run", "--config", "study=lab")


def theirs(
    home: Path, plane: ControlPlane, bucket: FaultyBucket, python: Path, jobs: int
) -> tuple[Kube, subprocess.Popen[bytes]]:
    """Start the other executor on as many jobs."""
    kube = namespace(plane, f"kubernetes-{jobs}")
    folder = home / kube.namespace
    folder.mkdir()
    (folder / "Snakefile").write_text(PEER_SNAKEFILE.format(jobs=jobs))
    command = [
        python, "-m", "snakemake", "--executor", "kubernetes", "--kubernetes-namespace", kube.namespace,
        "--jobs", str(jobs), "--max-jobs-per-timespan", "10000/1s", "--default-storage-provider", "gcs",
        "--default-storage-prefix", f"gs://{NAME}/{kube.namespace}", "--storage-gcs-project", "lab",
        "--seconds-between-status-checks", str(POLL_S),
    ]  # fmt: skip
    return kube, start(
        command,
        folder / "client.log",
        {"KUBECONFIG": str(plane.kubeconfig), "PYTHONPATH": "", "STORAGE_EMULATOR_HOST": bucket.endpoint},
        folder,
    )


def measure(
    name: str, client: tuple[Kube, subprocess.Popen[bytes]], plane: ControlPlane, jobs: int, seconds: float
) -> dict[str, Any]:
    """Wait until every Job is there, then count what the client asks while all of them wait."""
    kube, process = client
    began_s = time.monotonic()
    until(lambda: process.poll() is not None or len(kube.jobs()) == jobs, 600, f"{jobs} Jobs of {name}", every_s=0.5)
    if process.poll() is not None:
        logs = sorted(plane.folder.parent.glob("*/client.log"), key=lambda p: p.stat().st_mtime)
        sys.exit(f"{name} ended with {process.returncode}:\n{logs[-1].read_text()[-2000:]}")
    submit_s = time.monotonic() - began_s
    time.sleep(2 * POLL_S)  # the first polls also explain, and the submission's last requests end
    before, ticks = len(requests(plane, kube.namespace)), cpu_s(process.pid)
    time.sleep(seconds)
    asked = requests(plane, kube.namespace)[before:]
    used_s = cpu_s(process.pid) - ticks
    stop(process, 30, first=signal.SIGINT)
    # A poll asks about every Job once, or lists them once: whichever object is asked about most often counts polls.
    polls = max(asked.count(a) for a in set(asked)) if asked else 0
    return {
        "executor": name, "jobs": jobs, "submit_s": submit_s, "polls": polls, "calls": len(asked),
        "calls_per_poll": len(asked) / polls if polls else 0.0, "seconds_per_poll": seconds / polls if polls else 0.0,
        "client_cpu_s_per_poll": used_s / polls if polls else 0.0,
    }  # fmt: skip


def requests(plane: ControlPlane, of: str) -> list[str]:
    """What Python clients have asked the API server about one namespace: verb and object of each request.

    The tests' own LISTs of Jobs carry no label selector and are left out.
    """
    found = []
    for line in plane.audit_log.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if about.get("namespace") != of or "python" not in event.get("userAgent", ""):
            continue
        if event["verb"] == "list" and about["resource"] == "jobs" and "labelSelector" not in event["requestURI"]:
            continue
        found.append(f"{event['verb']} {about['resource']} {about.get('name', event['requestURI'])}")
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    for row in rows:
        cells = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
