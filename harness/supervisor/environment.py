"""Where a run ran: versions, hardware, commit and the variables that change behaviour, without secrets."""

import functools
import importlib.metadata
import os
import re
import subprocess
from collections.abc import Mapping

from harness.contract.record import Environment
from harness.contract.variables import SECRET_NAME, SECRET_VALUE
from harness.supervisor.host import host_facts
from harness.supervisor.launch import SOURCE_ROOT

PACKAGES = (
    "torch", "deepspeed", "transformers", "triton", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "distributed-training-bench",
)  # fmt: skip
PREFIXES = (
    "OMP_", "MKL_", "KMP_", "GOMP_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "CUDA_",
    "NVIDIA_", "GLOO_", "DS_", "DEEPSPEED_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "TRITON_", "MALLOC_", "LD_PRELOAD",
    "FI_", "UCX_", "OMPI_MCA_",
)  # fmt: skip
NOISE = ("NVIDIA_REQUIRE_",)
"""Long lists that a base image carries and no program here reads."""
REMOVED = "<removed>"
PATH = re.compile(r"(?<![\w./])~?/(?!/)[^\s:,;'\"]*")


def public_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables on the allow-list; secrets are dropped by name and by value, paths are blanked."""
    public = {}
    for name in sorted(variables):
        if name.startswith(PREFIXES) and not name.startswith(NOISE) and not SECRET_NAME.search(name):
            value = variables[name]
            public[name] = REMOVED if SECRET_VALUE.search(value) else PATH.sub("<path>", value)
    return public


def describe_environment(
    variables: Mapping[str, str], versions: Mapping[str, str], device_name: str | None
) -> Environment:
    """Environment of a run: `variables` as given to the ranks, `versions` and `device_name` as they report them."""
    return Environment(
        versions=installed_versions() | dict(versions),
        device_name=device_name,
        host=host_facts(),
        git_commit=git_commit(),
        variables=public_variables(variables),
    )


def installed_versions() -> dict[str, str]:
    """Versions of the packages that decide speed, read from their metadata without importing them."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def git_commit() -> str | None:
    """Commit of the harness, `-dirty` when changed; an image without a repository says it in HARNESS_GIT_COMMIT."""
    if stated := os.environ.get("HARNESS_GIT_COMMIT"):
        return stated
    command = ["git", "-C", str(SOURCE_ROOT), "describe", "--always", "--abbrev=40", "--match=", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
