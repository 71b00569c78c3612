"""A config at several sizes: efficiency, and the projection from one node held against a measured size."""

from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import build, write_report
from dtbench.results.scaling import ScalingRow
from dtbench.study.matrix import Matrix
from msgspec import structs

from harness.contract.engines.traffic import crossing
from harness.measure.ledger import messages
from tests.dtbench.conftest import make_record, run_of, write_record

Load = Callable[[str], Matrix]
STUDY = """
platforms:
  - {name: one, device: cuda, world_size: 8, accelerator: h200, interconnect: nvlink%s}
  - {name: two, device: cuda, world_size: 16, nodes: 2, accelerator: h200, interconnect: nvlink}
configs: [fsdp2-reshard]
arms: [matched]
repeats: 1
"""
LINK = ", link_gbit_per_s: 400, link_latency_us: 10"
PROFILE = {"shares": {"compute": 0.8, "comm_exposed": 0.1, "copy_exposed": 0.0, "idle": 0.1}, "overlap": 0.5}


def rows(study: Load, results: Path, link: str, bus_bytes_per_s: float | None = None) -> dict[int, ScalingRow]:
    matrix = study(STUDY % link)
    one, two = (run_of(matrix, "fsdp2-reshard", platform=name) for name in ("one", "two"))
    write_record(results, make_record(one, tokens_per_s=80_000.0, profile=PROFILE))
    record = make_record(two, tokens_per_s=120_000.0)
    assert record.measured is not None
    if bus_bytes_per_s:
        preflight = {"all_reduce": {"bus_bytes_per_s": bus_bytes_per_s}}
        record = structs.replace(record, measured=structs.replace(record.measured, preflight=preflight))
    write_record(results, record)
    text = write_report(matrix, results).read_text(encoding="utf-8")
    found = build(matrix, results).scaling
    assert text.count("| fsdp2-reshard | matched |") >= len(found) > 0
    assert "## More nodes" in text
    return {row.nodes: row for row in found}


def test_one_size_has_no_table(study: Load, tmp_path: Path) -> None:
    matrix = study(STUDY % "")
    write_record(tmp_path, make_record(run_of(matrix, "fsdp2-reshard", platform="one")))
    assert "More nodes" not in write_report(matrix, tmp_path).read_text(encoding="utf-8")


def test_efficiency_is_per_rank_of_the_smallest_size(study: Load, tmp_path: Path) -> None:
    found = rows(study, tmp_path, "")
    assert sorted(found) == [1, 2], "without a link nothing is projected"
    assert (found[1].efficiency_percent, found[2].efficiency_percent) == (100.0, 75.0)
    assert found[1].exposed_percent == pytest.approx(10.0)


def test_the_projection_adds_what_compute_does_not_hide(study: Load, tmp_path: Path) -> None:
    found = rows(study, tmp_path, LINK)
    assert sorted(found) == [1, 2, 4, 8, 16]
    spec = run_of(study(STUDY % LINK), "fsdp2-reshard", platform="one")
    for nodes in (2, 16):
        on_link_s = crossing(messages(spec) or (), nodes, 8, "nccl").seconds(50e9, 10e-6)
        step_s = spec.tokens_per_step / 80_000.0
        exposed_s = max(on_link_s / 2, on_link_s - 0.8 * step_s)
        assert found[nodes].projected_tokens_per_s == pytest.approx(spec.tokens_per_step * nodes / (step_s + exposed_s))
    projected = found[2].projected_tokens_per_s
    assert projected is not None
    assert found[2].error_percent == pytest.approx(100 * (projected / 120_000.0 - 1))
    assert found[4].error_percent is None, "not measured"


def test_a_measured_link_stands_in_for_none(study: Load, tmp_path: Path) -> None:
    given, measured = rows(study, tmp_path / "a", ", link_gbit_per_s: 400"), rows(study, tmp_path / "b", "", 50e9)
    assert measured[8].projected_tokens_per_s == pytest.approx(given[8].projected_tokens_per_s)
