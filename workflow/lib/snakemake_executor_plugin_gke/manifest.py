"""The Job of one attempt, rendered from workflow/templates/job.yaml.j2: a pure function of spec and settings."""

import functools
import hashlib
import json
import re
from importlib import resources
from typing import Any

from harness.contract.codec import canonical
from harness.contract.errors import SpecError
from harness.contract.exitcodes import CONFIG, DELIVERY, PREEMPTED
from harness.contract.spec import RunSpec

from .settings import ExecutorSettings

MANAGED_BY = "snakemake-executor-plugin-gke"
LABEL = "dtbench"
"""Prefix of our labels and annotations."""
ANNOTATIONS_LIMIT_BYTES = 256 * 1024
"""All annotations of one object together (Kubernetes API: TotalAnnotationSizeLimitB)."""


def label_value(text: str) -> str:
    """A legal label value for any text: the text itself when legal, else a slug with a hash of the text."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:54].strip("-._")
    return f"{slug}-{digest}" if slug else digest


def labels_of(spec: RunSpec) -> dict[str, str]:
    """Labels of the Job and its pods."""
    return {
        "app.kubernetes.io/name": "distributed-training-bench",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        f"{LABEL}/study": label_value(spec.identity.study),
        f"{LABEL}/platform": label_value(spec.platform.name),
        f"{LABEL}/config": label_value(spec.identity.config),
        f"{LABEL}/run": spec.run_hash()[:12],
        f"{LABEL}/attempt": str(spec.identity.attempt),
        f"{LABEL}/spec-hash": spec.hash()[:40],
    }


def selector(studies: set[str]) -> str:
    """Label selector of every Job of these studies."""
    values = ",".join(sorted({label_value(s) for s in studies}))
    return f"app.kubernetes.io/managed-by={MANAGED_BY},{LABEL}/study in ({values})"


def attempt_url(bucket: str, spec: RunSpec) -> str:
    """Where the pod of this attempt uploads to: gs://bucket/prefix/study/path."""
    return f"{bucket.rstrip('/')}/{spec.identity.study}/{spec.path()}"


def _memory(spec: RunSpec) -> dict[str, str | None]:
    gib = spec.platform.memory_gib
    if gib is None:
        return {"container": None, "shm": "8Gi"}
    # /dev/shm counts against the container's memory, so it may take a part of it and no more.
    return {"container": f"{int(gib * 1024)}Mi", "shm": f"{max(64, int(gib * 1024) // 4)}Mi"}


def _node_selector(spec: RunSpec, settings: ExecutorSettings) -> dict[str, str]:
    platform = spec.platform
    chosen: dict[str, str] = {}
    if platform.gke_accelerator:
        chosen["cloud.google.com/gke-accelerator"] = platform.gke_accelerator
        if not settings.no_count_selector:
            chosen["cloud.google.com/gke-accelerator-count"] = str(platform.world_size)
    if platform.machine_type:
        chosen["node.kubernetes.io/instance-type"] = platform.machine_type
    if platform.spot:
        chosen["cloud.google.com/gke-spot"] = "true"
    return chosen


@functools.cache
def _template() -> Any:
    import jinja2  # lazy: Snakemake imports every plugin at every start

    text = resources.files(__package__).joinpath("job.yaml.j2").read_text(encoding="utf-8")
    return jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(text)


def render_yaml(spec: RunSpec, settings: ExecutorSettings) -> str:
    """The Job as YAML text. Raises SpecError when the spec does not fit into an object's annotations."""
    plain = canonical(spec)
    if len(plain) > ANNOTATIONS_LIMIT_BYTES // 2:
        raise SpecError(
            f"spec of {spec.job_name()}: {len(plain)} bytes of JSON, but a Job can carry "
            f"{ANNOTATIONS_LIMIT_BYTES // 2}: shorten model.config or the environment"
        )
    rendered: str = _template().render(
        name=spec.job_name(),
        settings=settings,
        labels=labels_of(spec),
        label=LABEL,
        path=f"{spec.identity.study}/{spec.path()}",
        spec_json=plain,
        node_selector=_node_selector(spec, settings),
        spot=spec.platform.spot,
        gpus=spec.platform.world_size if spec.platform.gke_accelerator else 0,
        cpus=spec.platform.cpus,
        memory=_memory(spec),
        upload=attempt_url(settings.bucket, spec),
        ignored_codes=[PREEMPTED],
        fail_job_codes=[CONFIG, DELIVERY],
    )
    return rendered


def render_manifest(spec: RunSpec, settings: ExecutorSettings) -> dict[str, Any]:
    """The Job of one attempt as plain values, ready for the API server. Raises SpecError."""
    import yaml

    manifest: dict[str, Any] = yaml.load(
        render_yaml(spec, settings), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return manifest


def spec_of(job: dict[str, Any]) -> dict[str, Any]:
    """The spec that a Job carries, as plain JSON; empty when it carries none."""
    annotations = job["spec"]["template"]["metadata"].get("annotations") or {}
    plain: dict[str, Any] = json.loads(annotations.get(f"{LABEL}/spec", "{}"))
    return plain
