"""Where a run ran: versions, hardware, commit and the variables that change behaviour, without secrets."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.contract.record import Environment
from harness.contract.variables import SECRET_NAME, holds_secret
from harness.measure.host import memory_gib, read_text, usable_cores

SOURCE_ROOT = Path(__file__).resolve().parents[2]
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
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
"""Long variables that base images set and no program here reads."""
REMOVED = "<removed>"
PATH = re.compile(r"(?<![\w./])~?/(?!/)[^\s:,;'\"]*")


def public_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables on the allow-list, without secrets (by name and by value) and with paths blanked."""
    public = {}
    for name in sorted(variables):
        if name.startswith(PREFIXES) and not name.startswith(NOISE) and not SECRET_NAME.search(name):
            value = variables[name]
            public[name] = REMOVED if holds_secret(value) else PATH.sub("<path>", value)
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


def cpu_model() -> str | None:
    """Name of the CPU as the kernel reports it; None where it does not."""
    found = re.search(r"^model name\s*:\s*(.+)$", read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or None


def gpu_driver() -> str | None:
    """Version of the NVIDIA kernel driver; None without one."""
    found = re.search(r"Kernel Module\D*(\d+\.[\d.]+)", read_text(Path("/proc/driver/nvidia/version")))
    if found or shutil.which("nvidia-smi") is None:
        return found.group(1) if found else None
    # In a microVM the device is there, but the module's file is not.
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def host_facts() -> dict[str, Any]:
    """Facts that change speed. No host name, user or path."""
    return {
        "cpu_model": cpu_model(),
        "cores": usable_cores(),
        "cores_of_machine": os.cpu_count(),
        "memory_gib": memory_gib(),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "gpu_driver": gpu_driver(),
        "boot": boot(),
    }


def boot() -> str | None:
    """Hash of the machine's boot id. It is equal for all runs of one machine until it reboots, and does not identify
    the machine."""
    found = read_text(BOOT_ID).strip()
    return hashlib.sha256(found.encode()).hexdigest()[:12] if found else None
