"""A private checkout to run the real Snakemake in, and the cheap records that stand for finished runs."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from dtbench.study.matrix import Matrix, load_matrix

from harness.contract.spec import RunSpec
from tests.dtbench.conftest import make_record, write_record

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "workflow", "config", "harness", "profiles")

STUDY = """
platforms: [cpu-x2]
configs: [ddp, {name: mine, base: fsdp2-reshard, override: {data: {micro_batch: 1}}}]
arms: [matched]
repeats: %(repeats)d
model: {name: tiny}
data: {sequence_length: 32, micro_batch: 1}
protocol: {preset: quick, warmup_steps: 1, timed_steps: 2, telemetry_hz: 0}
"""


@dataclass
class Checkout:
    """A copy of the repository's code with results of its own."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def write_study(self, text: str, name: str = "small") -> None:
        (self.folder / "config" / f"{name}.yaml").write_text(text, encoding="utf-8")

    @property
    def matrix(self) -> Matrix:
        return load_matrix("small", self.folder)

    @property
    def results(self) -> Path:
        return self.folder / "results" / "small"

    def command(self, *arguments: str, config: tuple[str, ...] = ()) -> list[str]:
        options = ["--profile", "local", *arguments, "--config", "study=small", *config]
        return [sys.executable, "-m", "snakemake", *options]

    def run(self, *arguments: str, config: tuple[str, ...] = (), ok: bool = True) -> str:
        done = subprocess.run(
            self.command(*arguments, config=config),
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert (done.returncode == 0) is ok, done.stdout
        return done.stdout

    def preview(self, *arguments: str, config: tuple[str, ...] = ()) -> list[str]:
        """Attempt folders that a call would launch, below the study's folder."""
        text = self.run(*arguments, "-n", "--quiet", "progress", config=config)
        return sorted(re.findall(r"output: results/small/(\S+)/record\.json", text))

    def finish(self, spec: RunSpec, **told: object) -> Path:
        return write_record(self.results, make_record(spec, **told))  # type: ignore[arg-type]

    def finish_all(self) -> None:
        for spec in self.matrix.runs:
            self.finish(spec)


def make_checkout(folder: Path, repeats: int) -> Checkout:
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    (folder / "local").symlink_to("profiles/local")
    checkout = Checkout(folder)
    checkout.write_study(STUDY % {"repeats": repeats})
    return checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path, repeats=2)
