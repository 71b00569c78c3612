"""Every flag of `--executor gke`, each also a profile key and an environment variable SNAKEMAKE_GKE_<NAME>."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

DIGEST = re.compile(r"^[^\s@]+@sha256:[0-9a-f]{64}$")
BUCKET = re.compile(r"^gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^\s?#]+)?$")


def _flag(default: Any, help_text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help_text, "env_var": True, **metadata})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc]
    """What a user may set; Snakemake turns each field into `--gke-<field>`."""

    image: str = _flag(
        "", "Container image of the harness, by digest: REGISTRY/NAME@sha256:... (containers/build.sh prints it)."
    )
    bucket: str = _flag(
        "", "Bucket and optional prefix that pods upload results to and this client reads: gs://BUCKET/PREFIX."
    )
    namespace: str = _flag("default", "Kubernetes namespace of the Jobs.")
    service_account: str = _flag(
        "", "Kubernetes service account of the pods, bound to the bucket by workload identity."
    )
    queue: str = _flag("", "Kueue LocalQueue that admits the Jobs. Without it the scheduler alone decides.")
    topology: str = _flag(
        "",
        "Label of nodes, for example cloud.google.com/gce-topology-block: Kueue places all pods of a run on nodes with "
        "one value of it. Needs a queue.",
    )
    gang: bool = _flag(
        False,
        "Kubernetes itself places all pods of a run at once or none. Needs Kubernetes 1.37 with the "
        "feature gates GenericWorkload and WorkloadWithJob.",
    )
    pod_patches: str = _flag(
        "", "Folder of pod patches: PLATFORM.yaml there is merged into the pods of that platform (docs/nodes.md)."
    )
    priority_class: str = _flag("", "PriorityClass of the pods. Without it they get the cluster's default.")
    compute_classes: bool = _flag(
        False, "Select nodes by the ComputeClass that `dtbench gke up` makes of each platform, and by nothing else."
    )
    context: str = _flag("", "Context of the kubeconfig. Without it the current one is used.")
    poll_interval: int = _flag(30, "Seconds between two looks at the cluster (one LIST of Jobs, one of the bucket).")
    status_interval: int = _flag(
        60, "Seconds between two reports of why runs wait and how far others are (LISTs of pods and events)."
    )
    on_exit: str = _flag(
        "detach",
        "What Ctrl-C, TERM and HUP do to unfinished Jobs: detach (leave them for the next client) or cancel (delete).",
        choices=["detach", "cancel"],
    )
    start_patience: int = _flag(
        900, "Seconds a pod may sit on a node with an image it cannot pull or a container it cannot start."
    )
    backoff_limit: int = _flag(2, "Pods that may fail before the Job does; preempted pods are not counted.")
    ttl: int = _flag(604800, "Seconds a finished Job stays in the cluster; its results are in the bucket anyway.")
    grace_period: int = _flag(
        25, "Seconds a pod asks for between SIGTERM and SIGKILL; Spot nodes give 15 unless their pool says more."
    )
    secret: str = _flag(
        "",
        "Kubernetes Secret whose keys become variables of the run, for example HF_TOKEN. Specs and Jobs never hold the "
        "values.",
    )
    replace_waiting: bool = _flag(
        False, "Replace Jobs that have not started and were made with other settings or another image."
    )
    credentials_patience: int = _flag(
        300,
        "Seconds to wait for credentials and permissions that come late: in the pods and in this client.",
    )


common_settings = CommonSettings(
    non_local_exec=True,
    # The local results/ is the only tree Snakemake sees: the executor copies finished records into it.
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=1,
)


def check_settings(settings: ExecutorSettings) -> None:
    """Refuse settings from which no Job can be made. Raises WorkflowError naming the flag and what to do."""
    if not settings.image:
        raise WorkflowError("--gke-image is not set: give the harness image by digest (see docs/gke.md, Image)")
    if not DIGEST.match(settings.image):
        raise WorkflowError(
            f"--gke-image: found {settings.image!r}, expected NAME@sha256:<64 hexadecimal digits>: a tag can change "
            "between two pods of one study; containers/build.sh prints the digest"
        )
    if not settings.bucket:
        raise WorkflowError("--gke-bucket is not set: give gs://BUCKET/PREFIX (see docs/gke.md, Bucket)")
    if not BUCKET.match(settings.bucket.rstrip("/")):
        raise WorkflowError(f"--gke-bucket: found {settings.bucket!r}, expected gs://BUCKET or gs://BUCKET/PREFIX")
    if settings.topology and not settings.queue:
        raise WorkflowError("--gke-topology needs --gke-queue: it is Kueue that places pods by topology")
    if settings.pod_patches and not Path(settings.pod_patches).is_dir():
        raise WorkflowError(f"--gke-pod-patches: found no folder {settings.pod_patches}")
    for name, least in _LEAST.items():
        if getattr(settings, name) < least:
            flag = name.replace("_", "-")
            raise WorkflowError(f"--gke-{flag}: found {getattr(settings, name)}, expected {least} or more")
    if settings.on_exit not in ("detach", "cancel"):
        raise WorkflowError(f"--gke-on-exit: found {settings.on_exit!r}, expected detach or cancel")


_LEAST = {
    "poll_interval": 1,
    "status_interval": 1,
    "start_patience": 1,
    "backoff_limit": 0,
    "ttl": 1,
    "grace_period": 1,
    "credentials_patience": 0,
}
