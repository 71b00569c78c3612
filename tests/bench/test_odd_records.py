"""Records that are not what they should be: each is named with its file and the reason, none ends the report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.matrix import Matrix
from bench.report import write_report

from tests.bench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]


@pytest.fixture
def matrix(study: Load) -> Matrix:
    return study(GPU_STUDY)


def test_bad_records_beside_a_good_repeat_are_named_in_the_report_and_on_the_terminal(
    tmp_path: Path, matrix: Matrix, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path, make_record(run_of(matrix, "ddp", 1), tokens_per_s=4321.0))
    torn, foreign = (write_record(tmp_path, make_record(run_of(matrix, "ddp", repeat))) for repeat in (2, 3))
    torn.write_text("{")
    foreign.write_text(write_record(tmp_path / "elsewhere", make_record(run_of(matrix, "zero-3"))).read_text())
    (row,) = [line for line in write_report(matrix, tmp_path).read_text().splitlines() if line.startswith("| ddp | 4")]
    assert "| 1/3 | ok, 2x unknown: " in row
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    for path, reason in ((torn, "not a JSON text"), (foreign, "holds the record of another run")):
        name = f"{path.relative_to(tmp_path)}: "
        assert [line for line in said if line.startswith(name) and reason in line]
        assert name in row
        assert reason in row
    assert "elsewhere" not in (tmp_path / "report.html").read_text()


def test_many_bad_records_of_a_cell_do_not_make_a_row_endless(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("repeats: 3", "repeats: 5"))
    for repeat in range(1, 6):
        write_record(tmp_path, make_record(run_of(matrix, "ddp", repeat))).write_text("{")
    text = write_report(matrix, tmp_path).read_text()
    assert text.count("not a JSON text") == 3
    assert "; and 2 more |" in text


def test_a_record_of_another_run_is_no_reference_and_no_death(tmp_path: Path, matrix: Matrix) -> None:
    foreign = write_record(tmp_path, make_record(run_of(matrix, "zero-3")))
    other = make_record(run_of(matrix, "ddp"), outcome="host_oom")
    foreign.write_text(json.dumps(other.to_json()))
    assert "Deaths" not in write_report(matrix, tmp_path).read_text()
