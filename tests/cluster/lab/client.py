"""A user's clone of the repository and the snakemake that runs in it."""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from harness.contract.record import Record, read_record
from tests.cluster.lab.process import start, stop, until

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("Snakefile", "workflow", "config", "profiles", "gke", "local")
IMAGE = f"us-docker.pkg.dev/lab/bench/harness@sha256:{'0' * 64}"
PLATFORM = "lab-l4-x1"
ENTRY = {
    "device": "cpu",
    "world_size": 1,
    "accelerator": "l4",
    "interconnect": "pcie",
    "machine_type": "g2-standard-12",
    "gke_accelerator": "nvidia-l4",
    "spot": True,
    "cpus": 1,
    "memory_gib": 8,
}
"""A GKE platform whose ranks compute on CPUs: the pod asks for GPUs, the harness in it does not use them."""


def study(configs: list[str], **keys: Any) -> dict[str, Any]:
    """A study whose runs take seconds: two steps of the tiny model in the `defaults` arm."""
    return {
        "title": "Lab study",
        "description": "Runs of seconds for the tests of the GKE executor.",
        "platforms": [PLATFORM],
        "configs": configs,
        "arms": ["defaults"],
        "repeats": 1,
        "model": {"name": "tiny"},
        "data": {"sequence_length": 16, "micro_batch": 1},
        "protocol": {"warmup_steps": 1, "timed_steps": 2, "telemetry_hz": 0},
    } | keys


def light_study(*, repeats: int = 1, seconds: float = 1.0, **keys: Any) -> dict[str, Any]:
    """A study whose runs end by their own deadline after `seconds`: the whole harness, hardly any CPU time."""
    protocol = {"warmup_steps": 1, "timed_steps": 2, "telemetry_hz": 0, "deadline_s": seconds, "remedies": "off"}
    # Asleep before the first step: waiting for the deadline costs nothing.
    faults = [{"kind": "sleep", "phase": "load", "step": -1}]
    return study(["ddp"], **({"repeats": repeats, "protocol": protocol, "faults": faults} | keys))


def check_files(clone: "Clone", name: str) -> None:
    """Every record of a study is whole and every file that it lists is there with its checksum."""
    for path, record in clone.records(name).items():
        for file in record.files:
            content = (clone.folder / "results" / name / path / file.path).read_bytes()
            assert hashlib.sha256(content).hexdigest() == file.sha256, f"{path}/{file.path}"


class Clone:
    """One working copy with its own results/ and .snakemake/."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.log = folder / "client.log"
        self._clients: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)
        for part in PARTS:
            source = ROOT / part
            if source.is_symlink():
                (folder / part).symlink_to(source.readlink())
            elif source.is_dir():
                shutil.copytree(source, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / part)
        self.platform(PLATFORM, ENTRY)

    def platform(self, name: str, entry: dict[str, Any]) -> None:
        """Add a platform to config/platforms.yaml."""
        path = self.folder / "config" / "platforms.yaml"
        path.write_text(path.read_text() + "\n" + yaml.safe_dump({name: entry}))

    @staticmethod
    def python_path(*first: Path) -> str:
        """PYTHONPATH with folders before what is there."""
        return os.pathsep.join([*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])])

    @staticmethod
    def entry() -> dict[str, Any]:
        """The lab's platform, to vary."""
        return dict(ENTRY)

    def write_study(self, name: str, content: dict[str, Any]) -> None:
        """Write config/<name>.yaml."""
        (self.folder / "config" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def start(self, *arguments: str, profile: str = "gke", **environment: str) -> subprocess.Popen[bytes]:
        """Start `snakemake --profile PROFILE ARGUMENTS`."""
        command = [sys.executable, "-m", "snakemake", "--profile", profile, *arguments]
        client = start(command, self.log, self.environment | environment, self.folder)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Kill clients that a failed test has left."""
        for client in self._clients:
            stop(client, 0, first=signal.SIGKILL)

    def run(
        self,
        *arguments: str,
        timeout_s: float = 240,
        alive: Callable[[], object] | None = None,
        profile: str = "gke",
        **environment: str,
    ) -> int:
        """Run `snakemake --profile PROFILE ARGUMENTS` to its end; returns its exit status.

        With `alive`, whose value changes while there is progress, `timeout_s` bounds the time without any.
        """
        process = self.start(*arguments, profile=profile, **environment)
        seen, end_s = None, time.monotonic() + timeout_s
        while process.poll() is None:
            if alive and (now := alive()) != seen:
                seen, end_s = now, time.monotonic() + timeout_s
            if time.monotonic() > end_s:
                process.send_signal(signal.SIGINT)
                process.wait(20)
                what = "make progress" if alive else "end"
                raise AssertionError(f"the client did not {what} within {timeout_s} s:\n{self.said()[-4000:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        return process.returncode

    def said(self) -> str:
        """Everything this clone's clients have printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_until_said(self, pattern: str, timeout_s: float = 60) -> str:
        """Wait until a client has printed a line that matches; returns the match."""
        match = until(lambda: re.search(pattern, self.said()), timeout_s, f"the client to say {pattern!r}")
        return match.group(0)

    def records(self, name: str) -> dict[str, Record]:
        """Every local record of a study by the path of its attempt, each checked against the contract."""
        base = self.folder / "results" / name
        return {p.parent.relative_to(base).as_posix(): read_record(p) for p in sorted(base.rglob("record.json"))}

    def parts(self) -> list[Path]:
        """Unfinished files left behind below results/."""
        return list((self.folder / "results").rglob("*.part"))
