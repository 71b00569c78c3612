"""The Job of one attempt, rendered from workflow/templates/job.yaml.j2: a pure function of spec and settings."""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from harness.contract.codec import canonical
from harness.contract.errors import SpecError
from harness.contract.exitcodes import CONFIG, DELIVERY, PREEMPTED
from harness.contract.files import write_atomically
from harness.contract.spec import RunSpec

from . import patch
from .settings import ExecutorSettings

MANAGED_BY = "snakemake-executor-plugin-gke"
LABEL = "dtbench"
"""Prefix of our labels and annotations."""
SPEC_HASH, MADE_WITH = f"{LABEL}/spec-hash", f"{LABEL}/made-with"
JOB_SETTINGS = (
    "image", "bucket", "service_account", "queue", "priority_class", "secret", "backoff_limit", "ttl", "grace_period",
    "credentials_patience", "compute_classes", "topology", "gang",
)  # fmt: skip
"""Settings that a Job keeps from the moment it is made."""
COMPUTE_CLASS = "cloud.google.com/compute-class"
"""Label of the nodes of a ComputeClass."""
CPU_RANK_GIB, CPU_BASE_GIB = 2, 2
"""Memory of a rank that computes on a CPU and of its supervisor, for platforms that state none."""
NODES_SERVICE = "dtbench-nodes"
"""The headless Service of profiles/gke/service.yaml, through which the pods of one Job find each other."""
ANNOTATIONS_LIMIT_BYTES = 256 * 1024
"""All annotations of one object together (Kubernetes API: TotalAnnotationSizeLimitB)."""


def label_value(text: str) -> str:
    """A legal label value for any text: the text itself when legal, else a slug with a hash of the text."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:54].strip("-._")
    return f"{slug}-{digest}" if slug else digest


def _search_digest(spec: RunSpec, options: Sequence[str]) -> str:
    return hashlib.sha256("\0".join([spec.hash(), *options]).encode()).hexdigest()


def job_name(spec: RunSpec, options: Sequence[str] = ()) -> str:
    """A DNS-1123 label of at most 63 characters: of a run's attempt, or with `options` of the search for a frontier."""
    if not options:
        return spec.job_name()
    i = spec.identity
    tail = f"-frontier-{_search_digest(spec, options)[:12]}"
    slug = re.sub(r"[^a-z0-9]+", "-", f"{i.study}-{spec.platform.name}-{i.config}-{i.arm}".lower()).strip("-")
    return slug[: 63 - len(tail)].strip("-") + tail


def place_of(spec: RunSpec, options: Sequence[str] = ()) -> str:
    """Folder of an attempt, or of a search, below the bucket's prefix."""
    i = spec.identity
    if not options:
        return f"{i.study}/{spec.path()}"
    over = f"{spec.protocol.ladder_over}-{_search_digest(spec, options)[:12]}"
    return f"{i.study}/frontier/{spec.platform.name}/{i.config}/{i.arm}/{over}"


def labels_of(spec: RunSpec, options: Sequence[str] = ()) -> dict[str, str]:
    """Labels of the Job and its pods."""
    return {
        "app.kubernetes.io/name": "distributed-training-bench",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        f"{LABEL}/study": label_value(spec.identity.study),
        f"{LABEL}/platform": label_value(spec.platform.name),
        f"{LABEL}/config": label_value(spec.identity.config),
        f"{LABEL}/run": spec.run_hash()[:12],
        f"{LABEL}/attempt": str(spec.identity.attempt),
        SPEC_HASH: (_search_digest(spec, options) if options else spec.hash())[:40],
    }


def selector(studies: set[str]) -> str:
    """Label selector of every Job of these studies."""
    values = ",".join(sorted({label_value(s) for s in studies}))
    return f"app.kubernetes.io/managed-by={MANAGED_BY},{LABEL}/study in ({values})"


def made_with(settings: ExecutorSettings, platform: str) -> dict[str, str]:
    """What shapes a Job beside its spec: the settings, and the template and the platform's pod patch by digest."""
    digests = {
        "template": hashlib.sha256(_template_text().encode()).hexdigest()[:12],
        "pod_patch": patch.digest(settings.pod_patches, platform),
    }
    return {name: str(getattr(settings, name)) for name in JOB_SETTINGS} | digests


def check_platform(spec: RunSpec) -> None:
    """Refuse a GPU platform whose Job would ask for no GPU and land on any node. Raises SpecError."""
    platform = spec.platform
    known = {"gke_accelerator": platform.gke_accelerator, "machine_type": spec.offer.machine_type}
    missing = [name for name, value in known.items() if not value]
    if platform.device == "cuda" and missing:
        raise SpecError(
            f"platform {platform.name}: {' and '.join(missing)} not set, so its Job would ask GKE for no GPU: "
            "add them to its entry in config/platforms.yaml, or choose a platform that has them"
        )
    if (held := spec.offer.machine_gpus) and platform.ranks_per_node > held:
        raise SpecError(
            f"platform {platform.name}: {platform.ranks_per_node} ranks a node, but one {spec.offer.machine_type} has "
            f"{held} GPUs: give it more nodes"
        )


def _sizes(spec: RunSpec) -> dict[str, Any]:
    """GPUs, CPUs and memory that one pod asks for. A CPU platform that states no sizes asks for what its ranks need."""
    platform = spec.platform
    cpus, gib = spec.offer.cpus, spec.offer.memory_gib
    if platform.device == "cpu":
        cpus = cpus or platform.ranks_per_node
        gib = gib or CPU_BASE_GIB + CPU_RANK_GIB * platform.ranks_per_node
    return {
        # All GPUs of the host, even for fewer ranks: a second run on it would disturb the measurement.
        "gpus": (spec.offer.machine_gpus or platform.ranks_per_node) if platform.gke_accelerator else 0,
        "cpus": cpus,
        "memory": f"{int(gib * 1024)}Mi" if gib else None,
        # /dev/shm counts against the container's memory, so it may take a part of it and no more.
        "shm": f"{max(64, int(gib * 1024) // 4)}Mi" if gib else "8Gi",
    }


def _node_selector(spec: RunSpec, settings: ExecutorSettings) -> dict[str, str]:
    """Labels of the nodes to use: the platform's ComputeClass, or what pools made by hand carry.

    Beside a ComputeClass nothing else may be selected, because GKE itself decides how and where it buys. The machine
    type implies how many GPUs a node has.
    """
    if settings.compute_classes and spec.platform.gke_accelerator:
        return {COMPUTE_CLASS: spec.platform.compute_class}
    chosen = {
        "cloud.google.com/gke-accelerator": spec.platform.gke_accelerator,
        "node.kubernetes.io/instance-type": spec.offer.machine_type,
        "topology.kubernetes.io/zone": spec.offer.zone,
        "cloud.google.com/gke-spot": "true" if spec.offer.spot else None,
    }
    return {label: value for label, value in chosen.items() if value}


@functools.cache
def _template_text() -> str:
    return resources.files(__package__).joinpath("job.yaml.j2").read_text(encoding="utf-8")


@functools.cache
def _template() -> Any:
    import jinja2  # lazy: Snakemake imports every plugin at every start

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_template_text())


def render_yaml(spec: RunSpec, settings: ExecutorSettings, options: Sequence[str] = ()) -> str:
    """The Job of a run, or with `options` of the search for a frontier, as YAML text.

    Raises SpecError when the platform or the spec's size fits no Job.
    """
    check_platform(spec)
    if options and spec.platform.nodes > 1:
        raise SpecError(f"platform {spec.platform.name}: a search for the frontier runs on one node, not on several")
    plain = canonical(spec)
    if len(plain) > ANNOTATIONS_LIMIT_BYTES // 2:
        raise SpecError(
            f"spec of {spec.job_name()}: {len(plain)} bytes of JSON, but a Job can carry "
            f"{ANNOTATIONS_LIMIT_BYTES // 2}: shorten model.config or the environment"
        )
    place = place_of(spec, options)
    command = ["python", "-m", "harness", "frontier" if options else "run", "/spec/spec.json", "/out", *options]
    rendered: str = _template().render(
        name=job_name(spec, options),
        settings=settings,
        labels=labels_of(spec, options),
        label=LABEL,
        path=place,
        spec_json=plain,
        made_with=json.dumps(made_with(settings, spec.platform.name), sort_keys=True),
        node_selector=_node_selector(spec, settings),
        spot=spec.offer.spot,
        nodes=spec.platform.nodes,
        service=NODES_SERVICE,
        **_sizes(spec),
        command=[*command, "--upload", f"{settings.bucket.rstrip('/')}/{place}"],
        ignored_codes=[PREEMPTED],
        fail_job_codes=[CONFIG, DELIVERY],
    )
    return _patched(rendered, patch.read_patch(settings.pod_patches, spec.platform.name))


def _patched(text: str, pod_patch: dict[str, Any]) -> str:
    if not pod_patch:
        return text
    import yaml

    job = yaml.safe_load(text)
    job["spec"]["template"] = patch.merge(job["spec"]["template"], pod_patch)
    dumped: str = yaml.safe_dump(job, sort_keys=False, width=1000)
    return dumped


def render_manifest(spec: RunSpec, settings: ExecutorSettings, options: Sequence[str] = ()) -> dict[str, Any]:
    """The same as plain values, ready for the API server. Raises SpecError."""
    import yaml

    manifest: dict[str, Any] = yaml.load(
        render_yaml(spec, settings, options), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return manifest


def spec_of(job: dict[str, Any]) -> Any:
    """The spec that a Job carries, as plain JSON; empty when it carries none that can be read."""
    annotations = job["spec"]["template"]["metadata"].get("annotations") or {}
    try:
        return json.loads(annotations.get(f"{LABEL}/spec", "{}"))
    except ValueError:
        return {}


def write_manifests(specs: Iterable[RunSpec], settings: ExecutorSettings, folder: Path) -> list[Path]:
    """Write NAME.yaml for each attempt, remove YAML of attempts no longer asked for; returns the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{spec.job_name()}.yaml": spec for spec in specs}
    for stale in set(folder.glob("*.yaml")) - set(wanted):
        stale.unlink()
    for path, spec in wanted.items():
        write_atomically(path, render_yaml(spec, settings).encode())
    return sorted(wanted)
