"""The Jobs of many attempts as YAML files, and nothing submitted."""

from collections.abc import Iterable
from pathlib import Path

from harness.contract.spec import RunSpec

from .collect import write_atomically
from .manifest import render_yaml
from .settings import ExecutorSettings


def write_manifests(specs: Iterable[RunSpec], settings: ExecutorSettings, folder: Path) -> list[Path]:
    """Write NAME.yaml for each attempt, remove YAML of attempts no longer asked for; returns the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{spec.job_name()}.yaml": spec for spec in specs}
    for stale in set(folder.glob("*.yaml")) - set(wanted):
        stale.unlink()
    for path, spec in wanted.items():
        write_atomically(path, render_yaml(spec, settings).encode())
    return sorted(wanted)
