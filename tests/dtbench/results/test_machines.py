"""Ratios are formed on one machine where there is one; without one, the report says so and calls less a difference."""

from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import build, write_report
from dtbench.results.machines import Sample, machines, pair, spread
from dtbench.study.matrix import Matrix
from msgspec import structs

from harness.contract.record import Environment, Record
from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]


def on(record: Record, boot: str | None = None, started: str = "00:00", ended: str = "00:01") -> Record:
    environment = Environment(
        host={"boot": boot, "cores": 32}, device_name="CPU", git_commit=None, versions={}, variables={}
    )
    day = "2026-01-01T"
    return structs.replace(
        record, environment=environment, started_at=f"{day}{started}:00+00:00", ended_at=f"{day}{ended}:00+00:00"
    )


def test_machines_are_numbered_by_first_use(study: Load) -> None:
    run = study(GPU_STUDY).runs[0]
    late, early = on(make_record(run), "b", "09:00", "09:01"), on(make_record(run), "a", "08:00", "08:01")
    again = on(make_record(run), "b", "12:00", "12:01")
    assert machines({"late": late, "early": early, "again": again}) == {"early": "m1", "late": "m2", "again": "m2"}


def test_a_long_pause_means_another_machine(study: Load) -> None:
    run = study(GPU_STUDY).runs[0]
    times = {"one": ("08:00", "08:09"), "two": ("08:10", "08:11"), "three": ("08:17", "08:18")}
    records = {name: on(make_record(run), None, *span) for name, span in times.items()}
    assert machines(records) == {"one": "m1", "two": "m1", "three": "m2"}


def test_a_cited_source_has_no_machine(study: Load) -> None:
    run = study(GPU_STUDY).runs[0]
    assert machines({"cited": structs.replace(make_record(run), source="somebody's study")}) == {}


def test_pairs_share_a_machine_then_a_repeat() -> None:
    fast = [Sample(1, "m1", 10.0), Sample(2, "m2", 40.0), Sample(3, "m2", 50.0)]
    slow = [Sample(1, "m1", 5.0), Sample(3, "m2", 25.0), Sample(4, "m2", 20.0), Sample(5, "m3", 1.0)]
    pairs = pair(fast, slow)
    assert not pairs.apart
    assert pairs.numerator.keys() == pairs.denominator.keys()
    assert {pairs.numerator[key] / pairs.denominator[key] for key in pairs.numerator} == {2.0}
    assert len(pairs.numerator) == 3


@pytest.mark.parametrize(("machine", "apart"), [("m2", True), (None, False)])
def test_without_a_shared_machine_repeats_pair(machine: str | None, apart: bool) -> None:
    pairs = pair([Sample(1, "m1", 10.0), Sample(2, "m1", 10.0)], [Sample(2, machine, 5.0)])
    assert (len(pairs.numerator.keys() & pairs.denominator.keys()), pairs.apart) == (1, apart)


def test_spread_is_between_machines_only() -> None:
    assert spread([Sample(1, "m1", 10.0), Sample(2, "m1", 30.0)]) is None
    assert spread([Sample(1, "m1", 10.0), Sample(2, "m1", 30.0), Sample(3, "m2", 25.0)]) == pytest.approx(0.25)


def lay(folder: Path, matrix: Matrix, runs: dict[tuple[str, int], tuple[str, float]]) -> None:
    for (config, repeat), (boot, speed) in runs.items():
        write_record(folder, on(make_record(run_of(matrix, config, repeat), tokens_per_s=speed), boot))


def test_a_slow_machine_slows_no_engine(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    # Medians say that zero-3 is the faster one; both machines that ran both say the opposite.
    lay(
        tmp_path,
        matrix,
        {
            ("fsdp2-reshard", 1): ("a", 1000.0),
            ("zero-3", 1): ("a", 500.0),
            ("fsdp2-reshard", 2): ("a", 1010.0),
            ("zero-3", 2): ("b", 1500.0),
            ("zero-3", 3): ("b", 1510.0),
            ("fsdp2-reshard", 3): ("b", 3000.0),
        },
    )
    context = build(matrix, tmp_path)
    (choice,) = context.choices
    assert choice.best == "fsdp2-reshard"
    assert choice.behind.ratio.value > 1.9
    text = write_report(matrix, tmp_path).read_text()
    assert "`fsdp2-reshard` trains 1.99x as fast as `zero-3` (1.99 to 2.00 over 2 paired runs on 2 machines)" in text
    assert "The runs come from 2 machines, and the speed of one cell differs by up to 201% between them." in text
    assert "| h200-x2 | m1 | 2026-01-01T00:00:00+00:00 | 3 |" in text


def test_runs_of_different_machines_rank_nothing(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    both = {("fsdp2-reshard", 1): ("a", 1000.0), ("fsdp2-reshard", 2): ("b", 1500.0)}
    lay(tmp_path, matrix, {**both, ("ddp", 3): ("c", 1700.0), ("zero-3", 3): ("d", 500.0)})
    (choice,) = build(matrix, tmp_path).choices
    assert (choice.best, choice.ties) == (None, ())
    text = write_report(matrix, tmp_path).read_text()
    assert "No ranking of `ddp`, `fsdp2-reshard` and `zero-3`: no two of them ran on one machine" in text
    assert "- h200-x2, matched: no recommendation." in text


def test_an_unpaired_config_is_named_as_unranked(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    pairs = {
        (config, r): (f"m{r}", s * r) for config, s in (("fsdp2-reshard", 1000.0), ("zero-3", 500.0)) for r in (1, 2)
    }
    lay(tmp_path, matrix, pairs | {("ddp", 3): ("quick", 9000.0)})
    (choice,) = build(matrix, tmp_path).choices
    assert (choice.best, choice.unknown) == ("fsdp2-reshard", ("ddp",))
    assert "Not ranked, because no machine ran them beside it: `ddp`." in choice.sentence
    assert choice.advice[0].endswith("(`ddp` may be faster, as no machine ran them beside it).")


def test_a_clearly_slower_config_is_not_unranked(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    speeds = {"ddp": 1000.0, "fsdp2-reshard": 800.0}
    pairs = {(config, r): (f"m{r}", speed + r) for config, speed in speeds.items() for r in (1, 2)}
    lay(tmp_path, matrix, pairs | {("zero-3", 1): ("other", 100.0)})
    (choice,) = build(matrix, tmp_path).choices
    assert (choice.best, choice.unknown) == ("ddp", ())


def test_a_single_machine_needs_no_section(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    lay(tmp_path, matrix, {(c, r): ("a", 1000.0 + r) for c in ("ddp", "zero-3") for r in (1, 2, 3)})
    text = write_report(matrix, tmp_path).read_text()
    assert "machines" not in text.lower()


def test_three_pairs_on_different_machines_may_rank(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    # A node for every run, as on Kubernetes: three pairs all say 10%, which is less than one cell's own spread.
    speeds = {1: 1000.0, 2: 1150.0, 3: 1075.0}
    runs = {("fsdp2-reshard", r): (f"f{r}", s * 1.1) for r, s in speeds.items()}
    lay(tmp_path, matrix, runs | {("zero-3", r): (f"z{r}", s) for r, s in speeds.items()})
    text = write_report(matrix, tmp_path).read_text()
    assert "trains 1.10x as fast as `zero-3` (1.10 to 1.10 over 3 paired runs, on different machines)" in text


def test_many_machines_share_a_row(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    places = {(run.identity.config, run.identity.repeat): (str(n), 1000.0) for n, run in enumerate(matrix.runs)}
    lay(tmp_path, matrix, places)
    (row,) = build(matrix, tmp_path).machines
    assert (row.machine, row.runs) == ("9 machines", 9)


def test_the_slowest_nodes_bandwidth_is_shown(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    record = on(make_record(run_of(matrix, "ddp", 1)), "a")
    assert record.measured is not None
    preflight = {"matmul": {"flops_per_s": 1e12}, "all_reduce": {"bus_bytes_per_s": 2e9}}
    preflight |= {"bus_bytes_per_s_by_node": [4e11, 3e11]}
    measured = structs.replace(record.measured, preflight=preflight)
    write_record(tmp_path, structs.replace(record, measured=measured))
    assert "| 2.0 (300.0 in a node) |" in write_report(matrix, tmp_path).read_text()
