"""Records that are not what they should be: each is named with its file and the reason, none ends the report."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import write_report
from dtbench.study.matrix import Matrix

from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]


@pytest.fixture
def matrix(study: Load) -> Matrix:
    return study(GPU_STUDY)


def test_bad_records_are_named_in_report_and_terminal(
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
    for path, reason in ((torn, "not JSON"), (foreign, "holds the record of another run")):
        name = f"{path.relative_to(tmp_path)}:"
        assert [line for line in said if line.startswith(name) and reason in line]
        assert name in row
        assert reason in row
    assert "elsewhere" not in (tmp_path / "report.html").read_text()


def test_a_row_names_three_bad_records(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("repeats: 3", "repeats: 5"))
    for repeat in range(1, 6):
        write_record(tmp_path, make_record(run_of(matrix, "ddp", repeat))).write_text("{")
    text = write_report(matrix, tmp_path).read_text()
    assert text.count("not JSON") == 3
    assert "; and 2 more |" in text


def test_a_foreign_record_is_no_death(tmp_path: Path, matrix: Matrix) -> None:
    foreign = write_record(tmp_path, make_record(run_of(matrix, "zero-3")))
    other = make_record(run_of(matrix, "ddp"), outcome="host_oom")
    foreign.write_text(json.dumps(other.to_json()))
    assert "Deaths" not in write_report(matrix, tmp_path).read_text()


ODD = {
    "measured.tokens_per_s": [0, 0.0, -5.0, "fast"],
    "measured.step_time_s": [0, -0.1],
    "measured.step_time_p50_s": [0],
    "measured.memory.peak_allocated_bytes": [-1],
    "measured.state.bytes_per_parameter": [-8.0],
    "measured.mfu": [-0.1],
    "measured.search": [
        [{}],
        [{"settings": {}, "outcome": "fine", "tokens_per_s": None, "kept": False}],
        [{"settings": {}, "outcome": "ok", "tokens_per_s": 0.0, "kept": True}],
    ],
    "started_at": ["yesterday", "", "2026-13-01T00:00:00+00:00", "0001-01-01T00:00:00"],
    "ended_at": ["soon"],
    "wall_s": [-1.0],
}
"""Dotted key -> values that no run can have."""


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ODD.items() for value in values])
def test_an_impossible_value_makes_a_record_unreadable(
    tmp_path: Path, matrix: Matrix, capsys: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    for config in ("ddp", "zero-3"):
        write_record(tmp_path, make_record(run_of(matrix, config)))
    path = write_record(tmp_path, make_record(run_of(matrix, "fsdp2-reshard")))
    change(path, key, value)
    text = write_report(matrix, tmp_path).read_text()
    assert "| 1/3 | ok, 2x missing |" in text, "the others are reported all the same"
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{path.relative_to(tmp_path)}: {key}")
    assert "found" in line or "missing" in line


LOOSE = {
    "measured.preflight": [
        {"matmul": 5},
        {"matmul": ["x"]},
        {"matmul": {"flops_per_s": "fast"}, "all_reduce": {"bus_bytes_per_s": [1]}},
        {"dispatch": {"s_per_call": 10**400}},
        {"dispatch": True},
        {"bus_bytes_per_s_by_node": "x"},
        {"bus_bytes_per_s_by_node": [[], "x"]},
    ],
    "measured.profile": [
        {"shares": 5},
        {"shares": {"compute": "x"}},
        {"nccl_share": 10**400},
        {"nccl_share": float("nan")},
        {"kernel_kinds_s": 5},
        {"kernel_kinds_s": ["matmul"]},
        {"kernel_kinds_s": {"matmul": "long"}},
    ],
    "published": [{"collectives_before_death": 5}, {"collectives_before_death": ["x"]}, {"nccl_share": "x"}],
    "environment": [
        {"versions": {}, "device_name": None, "host": host, "git_commit": None, "variables": {}}
        for host in ({"boot": 5}, {"boot": []}, {"cores": "many", "gpu_driver": {}})
    ],
}
"""Dotted key -> values of another shape in parts that no class describes."""


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in LOOSE.items() for value in values])
def test_untyped_parts_of_another_shape_are_ignored(tmp_path: Path, matrix: Matrix, key: str, value: object) -> None:
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    outcome = "cuda_oom" if key == "published" else "ok"
    change(write_record(tmp_path, make_record(run_of(matrix, "zero-3"), outcome=outcome)), key, value)
    text = write_report(matrix, tmp_path).read_text()
    assert "| 1/3 | ok, 2x missing |" in text
    assert not re.search(r"\bnan\b", text)


def test_a_run_without_speed_is_advised_without(tmp_path: Path, matrix: Matrix) -> None:
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    light = write_record(tmp_path, make_record(run_of(matrix, "zero-3"), peak_bytes=10_000_000_000))
    change(light, "measured.tokens_per_s", None)
    text = write_report(matrix, tmp_path).read_text()
    assert "when memory is short, use `zero-3`: 10.00 GB, how much slower than `ddp` is unknown" in text


def change(path: Path, key: str, value: object) -> None:
    """Overwrite one value of a record on disk."""
    plain = json.loads(path.read_text())
    *parents, last = key.split(".")
    place = plain
    for name in parents:
        place = place[name]
    place[last] = value
    path.write_text(json.dumps(plain))
