"""The command `dtbench`: its help, studies through Snakemake, and the harness's own commands."""

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from dtbench import cli

from harness import cli as harness

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The command that would have replaced this process, whose own environment stays as it was."""
    command: list[str] = []
    monkeypatch.setattr(os, "execve", lambda program, arguments, environment: command.extend(arguments[2:]))
    monkeypatch.chdir(ROOT)
    yield command
    assert not [name for name in os.environ if name.startswith("DTBENCH_")]


def test_the_installed_script_is_this_command() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"dtbench": "dtbench.cli:main"}


def test_help_says_first_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("dtbench finds out which sharding engine and setting trains a model fastest")
    assert all(f"  {name} " in said for name in (*cli.STUDIES, *harness.COMMANDS))
    assert all(len(line) <= 120 for line in said.splitlines())


@pytest.mark.parametrize("name", [*cli.STUDIES, *cli.BEFORE, *cli.CLOUD, *cli.RECORDS, *harness.COMMANDS])
def test_every_commands_help_shows_its_call(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: dtbench {name} ")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from dtbench.cli import main; main(['--help'])\n"
        "heavy = ('msgspec', 'yaml', 'snakemake', 'pandas', 'torch', 'harness.contract.spec')\n"
        "sys.exit(', '.join(m for m in heavy if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dtbench {version('distributed-training-bench')}\n"


def test_check_lists_cells_and_starts_nothing(capsys: pytest.CaptureFixture[str], started: list[str]) -> None:
    assert cli.main(["check", "published"]) == 0
    said = capsys.readouterr().out
    assert "study published, " in said
    assert "zero-3-offload" in said
    assert not started


def test_check_refuses_an_unknown_study(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["check", "quik"]) == 64
    assert "did you mean 'quick'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ("start", "snakemake --profile local --config study=quick"),
        ("start h200-x2-2026 --profile gke --rerun failed -n",
         "snakemake --profile gke -n --config study=h200-x2-2026 rerun=failed"),
        ("start quick -- frontier --cores 2", "snakemake --profile local frontier --cores 2 --config study=quick"),
        ("report published --results /r", "snakemake --profile local report --config study=published results=/r"),
        ("report ./my.yaml", f"snakemake --profile local report --config study={ROOT}/my.yaml"),
    ],
)  # fmt: skip
def test_studies_go_through_snakemake(given: str, command: str, started: list[str]) -> None:
    cli.main(given.split())
    assert " ".join(started) == command


def test_outside_a_checkout_the_commands_own_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["report"])
    assert Path.cwd() == ROOT


@pytest.mark.parametrize("name", harness.COMMANDS)
def test_the_harness_commands_are_here_too(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert name in capsys.readouterr().out.partition("\n")[0]


def dtbench(*words: str, **how: Any) -> "subprocess.CompletedProcess[str]":
    program = "import sys; from dtbench.cli import main; sys.exit(main())"
    paths = os.pathsep.join((str(ROOT), str(ROOT / "workflow/lib")))
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, "-c", program, *words], stderr=subprocess.PIPE, text=True, env=environment, check=False, **how
    )


@pytest.mark.parametrize("words", [("--help",), ("check", "quick"), ("fit", "tiny", "--gpu", "l4", "--json")])
def test_a_closed_pipe_ends_quietly(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = dtbench(*words, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for words in (
        ("init", "tiny", "--gpu", "l4", "--out", f"{tmp_path}/file/study.yaml"),
        ("site", "results/published", "--out", f"{tmp_path}/file/site"),
    ):
        done = dtbench(*words, stdout=subprocess.PIPE, cwd=ROOT)
        assert done.returncode == 74, words
        assert re.fullmatch(rf"error: {tmp_path}/file\S*: (Not a directory|File exists)\n", done.stderr), done.stderr


@pytest.mark.parametrize("found", ["nan", "-1", "much"])
def test_a_limit_of_dollars_must_be_a_number(found: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", "quick", "--max-usd", found])
    assert f"argument --max-usd: found '{found}', expected a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "missing"), [("gke", "action"), ("prices", "action")])
def test_only_what_is_required_is_asked_for(command: str, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command])
    assert capsys.readouterr().err.endswith(f"the following arguments are required: {missing}\n")


def test_a_plan_of_1000_runs_is_quick(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text("platforms: [cpu-x2, cpu-x4]\nmodel: {name: tiny}\nrepeats: 28\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = dtbench("plan", "many.yaml", "--results", "out", stdout=subprocess.PIPE, cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Bill: 1008 runs, 0 cached, 1008 to run\n")
    assert len(json.loads((tmp_path / "out/many/plan.json").read_text())["specs"]) == 1008
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3


def test_a_plan_over_the_limit_is_not_written(tmp_path: Path) -> None:
    for words in (("--max-usd", "1"), ("-n",)):
        done = dtbench("plan", "quick", "--results", str(tmp_path), *words, stdout=subprocess.PIPE, cwd=ROOT)
        assert done.stdout.startswith("Bill: 36 runs")
        assert (done.returncode, done.stderr[:16]) == ((64, "error: --max-usd") if len(words) > 1 else (0, ""))
        assert not list(tmp_path.iterdir())


def test_a_plan_refuses_arguments_for_snakemake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", "quick", "--", "--cores", "2"])
    assert "unrecognized arguments: --cores 2" in capsys.readouterr().err


def test_a_plans_folder_must_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["plan", "quick", "--results", f"{tmp_path}/file"]) == 64
    assert f"error: --results {tmp_path}/file/quick: {tmp_path}/file is a file; give a" in capsys.readouterr().err
