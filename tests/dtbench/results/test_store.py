"""Which attempt of each run is wanted: a pure function of the records that lie there."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.results.store import INDEX, is_current, scan, sources, write_plan
from dtbench.study.cell import at
from dtbench.study.matrix import Matrix
from dtbench.workflow import Plan, parse_rerun
from msgspec import structs

from harness.contract.record import read_record
from tests.dtbench.conftest import GPU_STUDY, make_record, write_record

Load = Callable[[str], Matrix]


def numbers(results: Path, matrix: Matrix, rerun: str = "") -> dict[tuple[str, int], int]:
    plan = Plan.of(matrix, results, parse_rerun(rerun))
    return {(s.identity.config, s.identity.repeat): s.identity.attempt for s in plan.specs.values()}


@pytest.fixture
def matrix(study: Load) -> Matrix:
    return study(GPU_STUDY)


def test_without_results_every_first_attempt_is_missing(tmp_path: Path, matrix: Matrix) -> None:
    assert set(numbers(tmp_path, matrix).values()) == {1}
    assert len(Plan.of(matrix, tmp_path, frozenset()).missing) == 9


def test_rerun_selects_by_the_last_outcome(tmp_path: Path, matrix: Matrix) -> None:
    ok, oom, wedge = matrix.runs[:3]
    write_record(tmp_path, make_record(ok))
    write_record(tmp_path, make_record(oom, outcome="cuda_oom"))
    write_record(tmp_path, make_record(wedge, outcome="collective_wedge"))
    key = {name: (s.identity.config, s.identity.repeat) for name, s in (("ok", ok), ("oom", oom), ("wedge", wedge))}
    expected = {
        "": {"ok": 1, "oom": 1, "wedge": 1},
        "failed": {"ok": 1, "oom": 2, "wedge": 2},
        "all": {"ok": 2, "oom": 2, "wedge": 2},
        "cuda_oom": {"ok": 1, "oom": 2, "wedge": 1},
        "cuda_oom,collective_wedge": {"ok": 1, "oom": 2, "wedge": 2},
    }
    for rerun, attempt in expected.items():
        found = numbers(tmp_path, matrix, rerun)
        assert {name: found[key[name]] for name in key} == attempt, rerun


def test_a_report_is_stale_once_a_record_changes(tmp_path: Path, matrix: Matrix) -> None:
    def made_from() -> str:
        return sources(matrix, scan(tmp_path, matrix.runs), tmp_path)

    path = write_record(tmp_path, make_record(matrix.runs[0]))
    (tmp_path / "report.md").touch()
    (tmp_path / INDEX).write_text(json.dumps({"sources": made_from(), "files": ["report.md"]}))
    assert is_current(tmp_path, made_from())
    before = path.stat()
    os.utime(path, (1.0, 1.0))
    assert not is_current(tmp_path, made_from())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert is_current(tmp_path, made_from())
    write_record(tmp_path, make_record(matrix.runs[1]))
    assert not is_current(tmp_path, made_from())


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "{}", '{"sources": "x", "files": 1}', "\xff"])
def test_an_unreadable_index_is_stale(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_bytes(text.encode("latin-1"))
    assert not is_current(tmp_path, "x")


def test_the_newest_attempt_counts_and_old_ones_stay(tmp_path: Path, matrix: Matrix) -> None:
    run = matrix.runs[0]
    write_record(tmp_path, make_record(run, outcome="cuda_oom"))
    write_record(tmp_path, make_record(at(run, attempt=2)))
    assert list(scan(tmp_path, [run]).popitem()[1][1]) == [1, 2]
    key = (run.identity.config, run.identity.repeat)
    assert numbers(tmp_path, matrix, "failed")[key] == 2
    assert numbers(tmp_path, matrix, "all")[key] == 3


def test_an_attempt_without_record_is_launched_again(tmp_path: Path, matrix: Matrix) -> None:
    run = matrix.runs[0]
    (tmp_path / run.path() / "try-1").mkdir(parents=True)
    assert numbers(tmp_path, matrix)[(run.identity.config, run.identity.repeat)] == 1


def test_a_cancelled_run_is_simply_launched_again(tmp_path: Path, matrix: Matrix) -> None:
    run = matrix.runs[0]
    write_record(tmp_path, make_record(run, outcome="user_cancelled"))
    assert numbers(tmp_path, matrix)[(run.identity.config, run.identity.repeat)] == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"outcome": "fine"}', "null", "\xff"])
def test_an_unreadable_record_counts_as_failed(tmp_path: Path, matrix: Matrix, text: str) -> None:
    run = matrix.runs[0]
    path = write_record(tmp_path, make_record(run))
    path.write_bytes(text.encode("latin-1"))
    key = (run.identity.config, run.identity.repeat)
    assert numbers(tmp_path, matrix)[key] == 1
    assert numbers(tmp_path, matrix, "failed")[key] == 2
    assert numbers(tmp_path, matrix, "unknown")[key] == 2, "the outcome that the report shows"


def test_a_record_of_another_run_counts_as_failed(tmp_path: Path, matrix: Matrix) -> None:
    mine, other = matrix.runs[:2]
    path = write_record(tmp_path, make_record(mine))
    path.write_text(write_record(tmp_path / "elsewhere", make_record(other)).read_text())
    key = (mine.identity.config, mine.identity.repeat)
    assert numbers(tmp_path, matrix)[key] == 1
    assert numbers(tmp_path, matrix, "failed")[key] == 2


def test_rerun_follows_the_reports_diagnosis(tmp_path: Path, matrix: Matrix) -> None:
    run = matrix.runs[0]
    record = make_record(run, outcome="unknown")
    record = structs.replace(record, tries=(structs.replace(record.tries[0], launcher_exit_code=1),))
    died = write_record(tmp_path, record).parent / "try-1"
    died.mkdir()
    (died / "rank-0.log").write_text("ModuleNotFoundError: No module named 'flash_attn'\n")
    key = (run.identity.config, run.identity.repeat)
    assert numbers(tmp_path, matrix, "import_error")[key] == 2
    assert numbers(tmp_path, matrix, "unknown")[key] == 1


def test_an_attempts_own_spec_is_kept(tmp_path: Path, matrix: Matrix) -> None:
    run = matrix.runs[3]
    plan = Plan.of(matrix, tmp_path, frozenset())
    path = at(run, attempt=7).path()
    assert plan.spec(path) == at(run, attempt=7).to_json()
    assert (plan.slurm(path)["gres"], plan.slurm(path)["cpus_per_task"], plan.priority(path)) == ("gpu:2", 16, 0)


def test_a_record_without_newer_fields_counts(tmp_path: Path, matrix: Matrix) -> None:
    run = matrix.runs[0]
    path = write_record(tmp_path, make_record(run))
    plain = json.loads(path.read_text())
    assert run.protocol.telemetry_hz == 1.0
    del plain["spec"]["protocol"]["telemetry_hz"]  # as if the contract had not known this default yet
    path.write_text(json.dumps(plain))
    assert read_record(path).spec.path() == run.path()
    assert len(Plan.of(matrix, tmp_path, frozenset()).missing) == 8


def test_the_plan_lists_missing_runs_most_wanted_first(tmp_path: Path, matrix: Matrix) -> None:
    write_record(tmp_path, make_record(matrix.runs[0]))
    write_plan(tmp_path, Plan.of(matrix, tmp_path, frozenset()).missing, matrix.groups)
    specs = json.loads((tmp_path / "plan.json").read_text())["specs"]
    assert specs == [run.to_json() for run in matrix.runs[1:]]


def test_a_run_whose_partner_is_done_comes_last(tmp_path: Path, matrix: Matrix) -> None:
    pairs = [group for group in matrix.groups if len(group) > 1]
    assert pairs
    write_record(tmp_path, make_record(pairs[0][0]))
    write_plan(tmp_path, Plan.of(matrix, tmp_path, frozenset()).missing, matrix.groups)
    plain = json.loads((tmp_path / "plan.json").read_text())
    assert plain["specs"][-1] == pairs[0][1].to_json()
    stated = [[plain["specs"][place] for place in pair] for pair in plain["pairs"]]
    assert stated == [[spec.to_json() for spec in pair] for pair in pairs[1:]]
