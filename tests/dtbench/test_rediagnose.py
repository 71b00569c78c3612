"""Old attempts by today's rules: what is kept of that counts for the very record it was made from, and can be lost."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import write_report
from dtbench.report.tables import write_tables
from dtbench.results.rediagnose import load_diagnosed, mend_diagnoses, write_diagnoses
from dtbench.results.runs import DIAGNOSES, load_runs, read_diagnoses
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


def outcome_of(matrix: Matrix, results: Path, run: RunSpec, load: Callable[..., object] = load_diagnosed) -> str:
    loaded = load(matrix, results)
    assert isinstance(loaded, list)
    (found,) = [r.outcome for _, runs in loaded for r in runs if r.spec == run]
    return str(found)


def test_what_was_found_once_is_not_looked_for_again(tmp_path: Path, matrix: Matrix) -> None:
    run = run_of(matrix, "zero-3")
    died = die(tmp_path, run)
    write_diagnoses(matrix, tmp_path)
    (died.parent / "try-1" / "rank-0.log").unlink()
    assert outcome_of(matrix, tmp_path, run, load_runs) == "import_error"


@pytest.mark.parametrize("load", [load_runs, load_diagnosed])
def test_a_run_made_again_in_the_same_folder_is_judged_by_its_own_record(
    tmp_path: Path, matrix: Matrix, load: Callable[..., object]
) -> None:
    run = run_of(matrix, "zero-3")
    die(tmp_path, run)
    write_diagnoses(matrix, tmp_path)
    write_record(tmp_path, make_record(run, tokens_per_s=4321.0))
    assert outcome_of(matrix, tmp_path, run, load) == "ok"
    text = write_report(matrix, tmp_path).read_text()
    assert "| zero-3 | 4321 |" in text
    assert "| 1/3 | ok, 2x missing |" in text
    assert "import_error" not in text
    assert "4321" in (tmp_path / "runs.csv").read_text()


def test_a_death_that_is_newer_than_the_kept_ones_is_judged_by_todays_rules_too(tmp_path: Path, matrix: Matrix) -> None:
    die(tmp_path, run_of(matrix, "zero-3"))
    write_diagnoses(matrix, tmp_path)
    run = run_of(matrix, "ddp")
    die(tmp_path, run)
    assert outcome_of(matrix, tmp_path, run) == "import_error"
    write_tables(matrix, tmp_path)
    assert (tmp_path / "runs.csv").read_text().count("import_error") == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\xff", "[" * 100_000, '{"x": {"outcome": "ok"}}', '{"x": {"record": 1}}']
)
def test_a_broken_file_is_named_and_made_again(
    tmp_path: Path, matrix: Matrix, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    run = run_of(matrix, "zero-3")
    die(tmp_path, run)
    write_diagnoses(matrix, tmp_path)
    whole = (tmp_path / DIAGNOSES).read_text()
    (tmp_path / DIAGNOSES).write_bytes(text.encode("latin-1"))
    assert outcome_of(matrix, tmp_path, run) == "import_error"
    mend_diagnoses(matrix, tmp_path)
    assert (tmp_path / DIAGNOSES).read_text() == whole
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path / DIAGNOSES}:")
    assert line.endswith("; made again from the logs")
    mend_diagnoses(matrix, tmp_path)
    assert capsys.readouterr().out == ""


def test_the_file_names_the_record_of_each_diagnosis(tmp_path: Path, matrix: Matrix) -> None:
    run = run_of(matrix, "zero-3")
    die(tmp_path, run)
    write_diagnoses(matrix, tmp_path)
    (told,) = read_diagnoses(tmp_path / DIAGNOSES).values()
    assert told.diagnosis.outcome == "import_error"
    assert list(json.loads((tmp_path / DIAGNOSES).read_text())) == [run.path()]
