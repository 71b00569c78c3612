"""Old attempts are judged by today's rules each time that records are read."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import write_report
from dtbench.results.runs import load_runs
from dtbench.results.store import INDEX
from dtbench.study.matrix import Matrix
from msgspec import structs

from harness.contract.spec import RunSpec
from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]
LOG = "ModuleNotFoundError: No module named 'flash_attn'\n"


@pytest.fixture
def matrix(study: Load) -> Matrix:
    return study(GPU_STUDY)


def die(results: Path, run: RunSpec) -> Path:
    """A run that died, with a log of which today's rules know more than its record does."""
    record = make_record(run, outcome="unknown")
    record = structs.replace(record, tries=(structs.replace(record.tries[0], launcher_exit_code=1),))
    path = write_record(results, record)
    (path.parent / "try-1").mkdir(exist_ok=True)
    (path.parent / "try-1" / "rank-0.log").write_text(LOG)
    return path


def outcome_of(matrix: Matrix, results: Path, run: RunSpec) -> str:
    (found,) = [r.outcome for _, runs in load_runs(matrix, results) for r in runs if r.spec == run]
    return found


def test_a_repeated_run_is_judged_afresh(tmp_path: Path, matrix: Matrix) -> None:
    run = run_of(matrix, "zero-3")
    die(tmp_path, run)
    write_report(matrix, tmp_path)
    write_record(tmp_path, make_record(run, tokens_per_s=4321.0))
    assert outcome_of(matrix, tmp_path, run) == "ok"
    text = write_report(matrix, tmp_path).read_text()
    assert "| zero-3 | 4321 |" in text
    assert "| 1/3 | ok, 2x missing |" in text
    assert "import_error" not in text
    assert "4321" in (tmp_path / "runs.csv").read_text()


def test_old_runs_are_diagnosed_by_todays_rules(tmp_path: Path, matrix: Matrix) -> None:
    run = run_of(matrix, "zero-3")
    die(tmp_path, run)
    assert outcome_of(matrix, tmp_path, run) == "import_error"
    write_report(matrix, tmp_path)
    assert (tmp_path / "runs.csv").read_text().count("import_error") == 1
    attempts = json.loads((tmp_path / INDEX).read_text())["attempts"]
    assert {path: told["outcome"] for path, told in attempts.items()} == {run.path(): "import_error"}


def test_a_record_keeps_its_diagnosis_without_logs(tmp_path: Path, matrix: Matrix) -> None:
    run = run_of(matrix, "zero-3")
    (die(tmp_path, run).parent / "try-1" / "rank-0.log").unlink()
    assert outcome_of(matrix, tmp_path, run) == "unknown"
