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


def pinned(path):
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\\n]+)", path.read_text(), re.MULTILINE))


def test_the_image_installs_only_locked_versions():
    image, lock = pinned(CONTAINERS / "requirements.lock"), pinned(ROOT / "requirements.lock")
    assert set(requirements()) <= set(image), "run: make lock"
    assert image.items() <= lock.items(), "run: make lock"
    assert not {"snakemake", "kubernetes", "pandas", "pytest"} & set(image)
    blocks = re.split(r"^(?=[a-z0-9])", (CONTAINERS / "requirements.lock").read_text(), flags=re.MULTILINE)
    assert all("--hash=sha256:" in block for block in blocks if block.strip())


def test_deepspeeds_version_is_read_from_the_images_lock():
    line = next(x for x in (CONTAINERS / "operators.sh").read_text().splitlines() if x.startswith("version="))
    read = subprocess.run(
        ["bash", "-c", f'here={CONTAINERS}; {line}; echo "$version"'], capture_output=True, text=True, check=True
    )
    assert read.stdout.strip() == pinned(CONTAINERS / "requirements.lock")["deepspeed"]


def test_the_image_itself_says_where_cudas_libraries_are():
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in (CONTAINERS / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("docker", "machine", "words"),
    [
        (None, "x86_64", "there is no docker here"),
        ("exit 1", "x86_64", "docker's daemon does not answer"),
        ("exit 0", "aarch64", "this machine is aarch64"),
        ("exit 0", "x86_64", None),
    ],
)
def test_cloud_build_builds_what_docker_cannot(docker, machine, words, tmp_path):
    clone, programs = tmp_path / "clone", tmp_path / "bin"
    (clone / "containers").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(CONTAINERS / "build.sh", clone / "containers")
    fakes = {"uname": f"echo {machine}", "git": "[[ $1 != rev-parse ]] || echo abc"}
    fakes["gcloud"] = f'echo "$@" >> {tmp_path}/calls; [[ $1-$3 != artifacts-images ]] || echo sha256:1'
    if docker:
        fakes["docker"] = f'echo "docker $@" >> {tmp_path}/calls; [[ $1 != info ]] || {docker}'
    for name, text in fakes.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    for name in ("bash", "dirname", "env"):
        (programs / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        [clone / "containers/build.sh", "p", "r", "repo"], env={"PATH": str(programs)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gke-image: r-docker.pkg.dev/p/repo/harness@sha256:1")
    calls = (tmp_path / "calls").read_text()
    assert ("builds submit" in calls) == (words is not None)
    assert ("docker build" in calls) == (words is None)
    if words:
        assert words in done.stderr


def test_base_images_are_pinned_by_digest():
    text = (CONTAINERS / "Dockerfile").read_text()
    bases = re.findall(r"^ARG (?:BUILD_)?BASE=(\S+)", text, re.MULTILINE)
    assert len(bases) == len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    assert all(re.fullmatch(r"nvidia/cuda:\S+@sha256:[0-9a-f]{64}", base) for base in bases)


def test_every_file_the_dockerfile_copies_exists():
    sources = [s for line in re.findall(r"^COPY (.+)$", (CONTAINERS / "Dockerfile").read_text(), re.MULTILINE)
               for s in line.split()[:-1] if not line.startswith("--from=")]  # fmt: skip
    kept = {line[1:] for line in (CONTAINERS / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert set(sources) == kept
    assert all((ROOT / s).exists() for s in sources)


def test_compiled_code_fits_the_gpus_host(tmp_path):
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
