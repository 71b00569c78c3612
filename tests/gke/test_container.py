"""The image: its Dockerfile is linted, its install steps are run, and the harness runs in what they make."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.contract.record import read_record
from tests.gke.specs import make_spec

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"


def requirements():
    lines = (CONTAINERS / "requirements.in").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_the_dockerfile_passes_hadolint():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, CONTAINERS / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["install.sh", "operators.sh", "build.sh", "portable/g++"])
def test_scripts_parse_and_are_executable(name):
    assert os.access(CONTAINERS / name, os.X_OK)
    subprocess.run(["bash", "-n", CONTAINERS / name], check=True)


def test_everything_the_image_installs_is_pinned_by_the_lock_and_nothing_of_the_client_is():
    pinned = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert set(requirements()) <= pinned
    assert not {"snakemake", "kubernetes", "pandas", "pytest"} & set(requirements())


def test_what_the_dockerfile_copies_exists_and_gets_past_dockerignore():
    sources = [s for line in re.findall(r"^COPY (.+)$", (CONTAINERS / "Dockerfile").read_text(), re.MULTILINE)
               for s in line.split()[:-1] if not line.startswith("--from=")]  # fmt: skip
    kept = {line[1:] for line in (CONTAINERS / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert set(sources) == kept
    assert all((ROOT / s).exists() for s in sources)


def test_what_is_compiled_for_the_image_fits_the_gpus_host_and_not_the_machine_that_builds(tmp_path):
    source = tmp_path / "isa.c"
    source.write_text(
        "#if !defined(__AVX512F__) || !defined(__AVX512__) || defined(__AVX256__) || defined(__AVX512VNNI__)\n"
        "#error another instruction set\n#endif\n"
    )
    compiler = CONTAINERS / "portable" / "g++"
    command = [compiler, "-march=native", "-D__AVX256__", "-fsyntax-only", "-x", "c++", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_harness_runs_in_the_images_environment(tmp_path):
    venv, home = tmp_path / "venv", tmp_path / "bench"
    subprocess.run([CONTAINERS / "install.sh", venv, sys.executable], check=True)
    shutil.copytree(ROOT / "harness", home / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    tiny = json.loads((ROOT / "config" / "models" / "tiny.json").read_text())
    plain = make_spec(device="cpu", world_size=2, gke_accelerator=None).to_json()
    plain["model"]["config"] = tiny
    (tmp_path / "spec.json").write_text(json.dumps(plain))
    environment = {
        "PATH": f"{venv}/bin:/usr/bin:/bin", "PYTHONPATH": str(home), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1",
        "HARNESS_GIT_COMMIT": "0" * 40,
    }  # fmt: skip
    absent = subprocess.run(
        [f"{venv}/bin/python", "-c", "import snakemake"], env=environment, capture_output=True, check=False
    )
    assert b"ModuleNotFoundError" in absent.stderr, "the image needs nothing of the client"
    command = [f"{venv}/bin/python", "-m", "harness", "run", tmp_path / "spec.json", tmp_path / "out"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = read_record(tmp_path / "out" / "record.json")
    assert record.outcome == "ok", record.diagnosis
    assert record.environment is not None
    assert record.environment.git_commit == "0" * 40
