"""The published starting point: its tables as records, and every finding computed from them unaided."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from dtbench.report.document import Report, build, write_report
from dtbench.report.sections import CellRow
from dtbench.results.published import TABLES, main, records
from dtbench.study.matrix import load_matrix
from msgspec import structs

from harness.contract.record import read_record

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "results" / "published"
A100, L4 = "a100-40gb-x4", "l4-x4"


@pytest.fixture(scope="module")
def context() -> Report:
    matrix = load_matrix("published", ROOT)
    return build(matrix, SHIPPED)


def finding(context: Report, kind: str, **numbers: Any) -> Any:
    (found,) = [
        f for f in context.findings if f.kind == kind and all(f.numbers.get(k) == v for k, v in numbers.items())
    ]
    return found


def rows(context: Report, platform: str) -> dict[str, CellRow]:
    (section,) = [p for p in context.platforms if p.name == platform]
    return {row.config: row for row in section.tables[0].rows}


def test_the_shipped_records_are_what_the_generator_writes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    main(tmp_path)
    written = {p.relative_to(tmp_path / "results/published") for p in tmp_path.rglob("record.json")}
    assert written == {p.relative_to(SHIPPED) for p in SHIPPED.rglob("record.json")}
    for path in written:
        # Decoded: a shipped record does not state fields that the contract gained later.
        generated, shipped = read_record(tmp_path / "results/published" / path), read_record(SHIPPED / path)
        # The row of the price list that its platform names is newer than the record.
        assert generated.spec.is_same_run(shipped.spec), path
        generated = structs.replace(generated, spec=shipped.spec)
        assert generated == shipped, f"{path}: run python -m dtbench.results.published ."


def test_shipped_records_hold_the_schema() -> None:
    schema = json.loads((ROOT / "workflow/schemas/record.schema.json").read_text())
    paths = sorted(SHIPPED.rglob("record.json"))
    assert len(paths) == len(records(load_matrix("published", ROOT))) == 20
    for path in paths:
        jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_text()))
        assert read_record(path).source


def test_unmeasured_is_null_never_zero() -> None:
    for path in SHIPPED.rglob("record.json"):
        record = read_record(path)
        assert record.wall_s is None
        assert record.environment is None
        if record.measured is not None:
            assert record.measured.step_time_s is None
            assert record.measured.loss == []
            assert record.measured.memory is not None
            assert record.measured.memory.peak_reserved_bytes is None


@pytest.mark.parametrize(("cell", "figures"), TABLES.items(), ids=lambda v: "-".join(v) if isinstance(v, tuple) else "")
def test_every_figure_of_the_tables(context: Report, cell: tuple[str, str], figures: Any) -> None:
    row = rows(context, cell[0])[cell[1]]
    assert row.tokens_per_s is not None
    assert row.tokens_per_s.median == figures.tokens_per_s
    assert row.step_ms == pytest.approx(figures.step_ms)
    assert row.peak_gb is not None
    assert round(row.peak_gb, 2) == figures.peak_gb
    assert row.nccl_percent == pytest.approx(figures.nccl_share * 100)


def test_rows_stand_in_the_published_order(context: Report) -> None:
    assert list(rows(context, A100)) == [
        "fsdp2-noreshard", "fsdp2-reshard", "fsdp2-reshard-offload", "zero-1", "zero-2", "zero-3", "zero-3-offload",
        "zero-0",
    ]  # fmt: skip
    assert list(rows(context, L4)) == [
        "fsdp2-noreshard", "fsdp2-reshard", "fsdp2-reshard-offload", "zero-0", "zero-1", "zero-2", "zero-3",
        "zero-3-offload",
    ]  # fmt: skip


def test_daggers_failures_and_gaps(context: Report) -> None:
    assert [name for name, row in rows(context, L4).items() if row.dagger] == ["zero-2", "zero-3"]
    assert not any(row.dagger for row in rows(context, A100).values())
    assert rows(context, A100)["zero-0"].outcome == "cuda_oom"
    assert rows(context, L4)["zero-1"].outcome == "cuda_oom"
    assert round(rows(context, L4)["zero-1"].peak_gb or 0, 2) == 21.35
    assert rows(context, L4)["zero-0"].outcome == "excluded"
    assert rows(context, L4)["fsdp2-reshard-offload"].outcome == "not collected"


def test_fsdp2_over_zero_3_on_a100(context: Report) -> None:
    found = finding(context, "head_to_head", platform=A100, config="fsdp2-reshard")
    assert round(found.numbers["ratio"], 2) == 1.83
    assert round(found.numbers["peak_change"] * 100) == -27
    assert "1.83x" in found.sentence
    assert "is 27% lower" in found.sentence


def test_nccl_shares_grow_over_pcie(context: Report) -> None:
    found = finding(context, "nccl_share")
    assert found.numbers["fsdp2-noreshard"] == [0.261, 0.467]
    assert found.numbers["fsdp2-reshard"] == [0.277, 0.511]
    assert found.numbers["zero-2"] == [0.173, 0.502]
    assert found.numbers["zero-3"] == [0.427, 0.475]


@pytest.mark.parametrize(("platform", "percent"), [(A100, -14), (L4, -31)])
def test_the_reshard_price(context: Report, platform: str, percent: int) -> None:
    assert round(finding(context, "reshard_price", platform=platform).numbers["change"] * 100) == percent


def test_the_zero_2_zero_3_order_turns(context: Report) -> None:
    found = finding(context, "stage_order")
    assert round((found.numbers[L4] - 1) * 100) == 19
    assert found.numbers[A100] < 1
    assert "depends on the platform" in found.sentence


@pytest.mark.parametrize(
    ("config", "before", "after", "slowdown"), [("fsdp2-reshard", 13.34, 7.68, 8.9), ("zero-3", 18.18, 6.69, 3.1)]
)
def test_offloads_exchange(context: Report, config: str, before: float, after: float, slowdown: float) -> None:
    numbers = finding(context, "offload", platform=A100, config=config).numbers
    assert (numbers["before_gb"], numbers["after_gb"]) == (before, after)
    assert round(numbers["slowdown"], 1) == slowdown


def test_the_survival_line_on_l4(context: Report) -> None:
    found = finding(context, "survival", platform=L4)
    assert (round(found.numbers["low_gb"], 1), round(found.numbers["high_gb"], 1)) == (14.0, 18.2)
    assert found.numbers["trend"] == pytest.approx(-1.0)
    assert "after 4016" in found.sentence
    assert "the farther above the line, the sooner the death" in found.sentence


def test_zero_0_does_not_fit(context: Report) -> None:
    found = finding(context, "does_not_fit", platform=A100)
    assert found.numbers["config"] == "zero-0"
    assert "9.48 GiB free of 39.49" in found.detail


@pytest.mark.parametrize("platform", [A100, L4])
def test_precision_explains_the_published_memory(context: Report, platform: str) -> None:
    numbers = finding(context, "precision", platform=platform).numbers
    assert [round(b) for b in numbers["state_bytes"]] == [8, 16]
    assert numbers["expected_gb"] > numbers["measured_gb"] > 4.5


def test_deaths_tell_the_published_stories(context: Report) -> None:
    deaths = {(d.platform, d.config, d.where): d for d in context.deaths}
    wedge = deaths[L4, "zero-3", "r1 a1 try 1"]
    assert (wedge.outcome, wedge.collectives, wedge.exits) == ("collective_wedge", 4016, "SIGABRT")
    oom = deaths[L4, "zero-3", "r1 a2 try 1"]
    assert (oom.outcome, oom.cured_by) == ("cuda_oom_fragmentation", "expandable-segments")
    assert deaths[L4, "zero-2", "r1 a1 try 1"].collectives == 456
    refused = [d for d in context.deaths if d.outcome == "launcher_args"]
    assert len(refused) == 5
    assert {d.exits for d in refused} == {"4x exit 2"}


def test_golden_report_is_byte_stable(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "published")
    matrix = load_matrix("published", ROOT)
    matrix = dataclasses.replace(matrix, path=Path("config/published.yaml"))
    write_report(matrix, tmp_path / "published")
    for name in ("report.md", "runs.csv", "cells.csv"):
        shipped = SHIPPED / name
        assert (tmp_path / "published" / name).read_bytes() == shipped.read_bytes(), (
            f"{name} changed; if it should, run: snakemake --profile local report --config study=published"
        )


def test_figures_are_byte_stable(tmp_path: Path) -> None:
    matrix = load_matrix("published", ROOT)
    for name in ("one", "two"):
        shutil.copytree(SHIPPED, tmp_path / name)
        write_report(matrix, tmp_path / name)
    for figure in ("throughput", "memory", "survival"):
        one, two = ((tmp_path / name / f"figures/{figure}.svg").read_bytes() for name in ("one", "two"))
        assert one == two
    assert (tmp_path / "one/report.html").read_bytes() == (tmp_path / "two/report.html").read_bytes()
