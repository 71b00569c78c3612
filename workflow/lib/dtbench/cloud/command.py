"""`dtbench gke up | status | down`: what a study needs beside the cluster itself, made once and removed whole."""

import argparse
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dtbench.cloud.kube import Cluster
from dtbench.cloud.objects import PURCHASES, Setup, manifests, title
from dtbench.cloud.spent import RECEIPTS, read_receipts, receipt_lines
from dtbench.cloud.storage import Bucket
from dtbench.study.files import read_mapping
from dtbench.study.platforms import PlatformEntry, load_platforms
from harness.contract.errors import HarnessError, SpecError, nearest

SETTINGS = {"namespace": "default", "service_account": "", "bucket": "", "context": ""}
"""Settings of the profile that matter here, with the executor's defaults."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `dtbench gke`."""
    command.add_argument("action", choices=["up", "status", "down"], help="make, look at or remove what studies need")
    command.add_argument(
        "platforms", nargs="*", default=(), metavar="PLATFORM", help="platforms to buy (default: all of GKE's)"
    )
    command.add_argument("--profile", default="gke", help="where namespace, bucket and account are set (default: gke)")
    command.add_argument("-n", "--dry-run", action="store_true", help="ask the cluster what would happen; do nothing")
    command.add_argument(
        "--zones", default="", help="zones to take machines in, for example us-central1-a,us-central1-c"
    )
    command.add_argument("--buy", default=",".join(PURCHASES), help="ways to buy a machine (default: all: %(default)s)")
    command.add_argument("--reservation", default="", metavar="NAME", help="reservation to use first")
    command.add_argument("--client", default="", metavar="EMAIL", help="who runs studies: gets the namespace's Role")
    command.add_argument("--node-account", default="", metavar="EMAIL", help="Google service account of the nodes")
    command.add_argument("--location", default="", metavar="REGION", help="region of the bucket, the cluster's own")
    command.add_argument("--results", default="results", metavar="FOLDER", help="folder of all results, with receipts")
    command.add_argument("--project", default="", help="Google project (default: that of your login)")


def gke(options: argparse.Namespace, root: Path) -> int:
    """Do it; returns the exit status. Raises HarnessError."""
    settings = _settings(root / "profiles" / options.profile / "config.yaml")
    acts: dict[str, Callable[[argparse.Namespace, Path, dict[str, str]], int]]
    acts = {"up": _up, "status": _status, "down": _down}
    return acts[options.action](options, root, settings)


def _settings(profile: Path) -> dict[str, str]:
    """The profile's settings; variables come first, as Snakemake has it."""
    given = read_mapping(profile)
    found = {}
    for name, default in SETTINGS.items():
        variable = os.environ.get(f"SNAKEMAKE_GKE_{name.upper()}")
        found[name] = str(variable or given.get(f"gke-{name.replace('_', '-')}", default))
    return found


def _platforms(options: argparse.Namespace, root: Path) -> list[PlatformEntry]:
    known = load_platforms(root / "config" / "platforms.yaml")
    for name in options.platforms:
        if name not in known:
            raise SpecError(f"platform: found {name!r}; {nearest(name, list(known))}")
    bought = [name for name, entry in known.items() if entry.gke_accelerator and entry.machine_type]
    return [known[name] for name in options.platforms or bought]


def _setup(options: argparse.Namespace, settings: dict[str, str]) -> Setup:
    def words(text: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in text.split(",") if word.strip())

    return Setup(
        namespace=settings["namespace"],
        account=settings["service_account"],
        client=options.client,
        zones=words(options.zones),
        purchases=words(options.buy),
        reservation=options.reservation,
        node_account=options.node_account,
    )


def _up(options: argparse.Namespace, root: Path, settings: dict[str, str]) -> int:
    setup, failed = _setup(options, settings), 0
    cluster = Cluster(settings["context"])
    for wanted in manifests(setup, _platforms(options, root), root / "profiles" / "gke"):
        try:
            said = cluster.make(wanted, dry_run=options.dry_run)
        except HarnessError as error:
            said, failed = f"not made: {error}", 1
        print(f"{title(wanted)}: {said}")
    if not settings["bucket"]:
        print("bucket: none, because the profile has no gke-bucket")
    elif not options.location:
        raise SpecError("--location: missing; give the region for the bucket, the cluster's own")
    else:
        member = None if not setup.account else lambda number, project: _member(number, project, setup)
        bucket = Bucket(settings["bucket"], options.project)
        for line in bucket.make(options.location, member, dry_run=options.dry_run):
            print(f"bucket {bucket.name}: {line}")
    if not setup.client:
        print("Role dtbench-client: bound to nobody; give --client EMAIL, or you need these rights otherwise")
    return failed


def _member(number: int, project: str, setup: Setup) -> str:
    """The pods' account as IAM knows it through workload identity."""
    pool = f"projects/{number}/locations/global/workloadIdentityPools/{project}.svc.id.goog"
    return f"principal://iam.googleapis.com/{pool}/subject/ns/{setup.namespace}/sa/{setup.account}"


def _status(options: argparse.Namespace, root: Path, settings: dict[str, str]) -> int:
    setup, cluster = _setup(options, settings), Cluster(settings["context"])
    wanted = manifests(setup, _platforms(options, root), root / "profiles" / "gke")
    made = cluster.made(setup.namespace)
    there = {title(found) for found in made}
    for name in [title(plain) for plain in wanted]:
        print(f"{name}: {'made' if name in there else 'missing, or not made by dtbench'}")
    for name in sorted(there - {title(plain) for plain in wanted}):
        print(f"{name}: made, and no platform needs it any more")
    if settings["bucket"]:
        bucket = Bucket(settings["bucket"], options.project)
        print(f"bucket {bucket.name}: {bucket.state()}")
    for kept in sorted((root / options.results).glob(f"*/{RECEIPTS}")):
        for line in receipt_lines(read_receipts(kept.parent)):
            print(f"{kept.parent.name}: {line}")
    ends = Counter(_end(job) for job in cluster.jobs(setup.namespace))
    print(f"Jobs: {', '.join(f'{count} {end}' for end, count in sorted(ends.items())) or 'none'}")
    return 0


def _end(job: dict[str, object]) -> str:
    status = job.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    met = {c["type"] for c in conditions or () if c.get("status") == "True"}
    return "complete" if "Complete" in met else "failed" if "Failed" in met else "unfinished"


def _down(options: argparse.Namespace, root: Path, settings: dict[str, str]) -> int:
    namespace, cluster = settings["namespace"], Cluster(settings["context"])
    made = cluster.made(namespace)
    if left := [job["metadata"] for job in cluster.jobs() if _end(job) == "unfinished"]:
        raise HarnessError(
            f"found {len(left)} unfinished Jobs ({left[0]['name']} in namespace {left[0]['namespace']} ...), which "
            "would wait for machines forever; delete them first: kubectl delete jobs --namespace NAMESPACE "
            "-l app.kubernetes.io/managed-by=snakemake-executor-plugin-gke"
        )
    for found in made:
        others = cluster.others(namespace) if found["kind"] == "Namespace" else []
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            print(f"{title(found)}: holds what dtbench did not make ({others[0]}{more}): left as it is")
            continue
        if not options.dry_run:
            cluster.remove(found)
        print(f"{title(found)}: {'would be removed' if options.dry_run else 'removed'}")
    if settings["bucket"]:
        bucket = Bucket(settings["bucket"], options.project)
        print(f"bucket {bucket.name}: {bucket.remove(dry_run=options.dry_run)}")
    return 0
