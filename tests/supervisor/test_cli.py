"""The command line: help for every command, set-up that says what is missing, start-up without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli
from harness.contract import exitcodes
from harness.supervisor import extensions
from tests.supervisor.conftest import ROOT


def harness(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", ["run", "batch", "setup", "diagnose"])
def test_every_command_explains_itself(command: str) -> None:
    answer = harness(command, "--help")
    assert answer.returncode == 0
    assert command in answer.stdout
    assert command in harness("--help").stdout


def test_an_unknown_command_lists_the_known_ones() -> None:
    answer = harness("rnu")
    assert answer.returncode == 2
    assert "run" in answer.stderr


@pytest.mark.parametrize("command", ["batch", "frontier"])
@pytest.mark.parametrize("value", ["nan", "-1", "-inf", "soon"])
def test_a_budget_that_is_no_time_is_refused(command: str, value: str) -> None:
    answer = harness(command, "plan.json", "out", f"--budget-s={value}")
    assert answer.returncode == 2
    assert f"argument --budget-s: found '{value}', expected seconds, 0 or more" in answer.stderr


def test_a_budget_may_be_without_end() -> None:
    given = cli.parser().parse_args(["batch", "plan.json", "out", "--budget-s", "inf"])
    assert given.budget_s == float("inf")


def test_the_supervisor_never_loads_torch() -> None:
    program = (
        "import sys, harness.run, harness.plans, harness.supervisor.extensions\n"
        "print([m for m in ('torch', 'deepspeed', 'numpy', 'google.cloud.storage', 'pynvml') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_missing_compiler_says_what_to_install(tmp_path: Path) -> None:
    answer = harness("setup", TORCH_EXTENSIONS_DIR=str(tmp_path), CXX="absent-compiler")
    assert answer.returncode == exitcodes.INTERNAL
    assert "found no absent-compiler" in answer.stderr
    assert "install g++" in answer.stderr


def test_set_up_is_done_once_per_version(tmp_path: Path) -> None:
    (tmp_path / extensions.STAMP).write_text(json.dumps(extensions._fingerprint()))
    answer = harness("setup", TORCH_EXTENSIONS_DIR=str(tmp_path), CXX="absent-compiler")
    assert answer.returncode == 0
    assert "are built" in answer.stdout
    (tmp_path / extensions.STAMP).write_text(json.dumps(extensions._fingerprint() | {"torch": "1.0"}))
    assert harness("setup", TORCH_EXTENSIONS_DIR=str(tmp_path), CXX="absent-compiler").returncode == exitcodes.INTERNAL


def test_a_build_that_fails_shows_the_compilers_words(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho this compiler is broken >&2\nexit 1\n")
    compiler.chmod(0o755)
    answer = harness("setup", TORCH_EXTENSIONS_DIR=str(tmp_path / "ext"), CXX=str(compiler))
    assert answer.returncode == exitcodes.INTERNAL
    assert "the build failed" in answer.stderr
    assert not (tmp_path / "ext" / extensions.STAMP).exists()


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_not_this_folder(name: str) -> None:
    answer = harness("share", name)
    assert answer.returncode == 2
    assert "found an empty name, expected one study's results" in answer.stderr


@pytest.mark.parametrize(
    ("command", "key", "meant"),
    [
        ("run", "specs", "batch PLAN OUTROOT"),
        ("run", "frontiers", "frontier PLAN OUT"),
        ("batch", "frontiers", "frontier PLAN OUT"),
        ("frontier", "specs", "batch PLAN OUTROOT"),
    ],
)
def test_a_plan_of_another_command_names_it(tmp_path: Path, command: str, key: str, meant: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({key: []}))
    answer = harness(command, str(plan), str(tmp_path / "out"))
    assert answer.returncode == exitcodes.CONFIG
    assert f"plan.json: found a plan of `{meant.split()[0]}`" in answer.stderr
    assert f"work through it with `python -m harness {meant}`" in answer.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("command", "key"), [("batch", "specs"), ("frontier", "frontiers")])
def test_an_empty_plan_says_nothing_to_do(tmp_path: Path, command: str, key: str) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({key: []}))
    answer = harness(command, str(tmp_path / "plan.json"), str(tmp_path / "out"))
    assert answer.returncode == exitcodes.RECORD_DELIVERED, answer.stderr
    assert "there is nothing to " in answer.stdout
