"""The results that are shipped: every record whole, every report what today's code makes of its records."""

import re
from pathlib import Path

import pytest
from dtbench.report.document import build, texts
from dtbench.report.tables import write_tables
from dtbench.results.frame import frame, to_csv
from dtbench.results.runs import all_runs, load_runs
from dtbench.study.matrix import load_matrix

from harness.contract.record import read_record
from harness.supervisor.folder import unsound

ROOT = Path(__file__).resolve().parents[3]
STUDIES = sorted(
    path.parent.name for path in ROOT.glob("results/*/report.md") if (path.parent / "report.html").exists()
)
SHIPPED = [name for name in STUDIES if f"!/results/{name}/" in (ROOT / ".gitignore").read_text().split()]


def test_there_are_some() -> None:
    assert {"published", "h200-x1-2026", "h200-x2-2026"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_record_has_its_spec_and_files(name: str) -> None:
    paths = sorted((ROOT / "results" / name).rglob("record.json"))
    assert paths
    for path in paths:
        record = read_record(path)
        assert record.spec_hash == record.spec.hash(), path
        place = path.parent.relative_to(ROOT / "results" / name).as_posix()
        # Rungs of a ladder and trials lie where their search does.
        assert place == record.spec.path() or re.match("frontier/|.*/(trial|rung)-", place), path
        assert record.source is not None or unsound(path.parent, record) == [], path


@pytest.mark.parametrize("name", SHIPPED)
def test_the_committed_report_follows_from_the_records(name: str, tmp_path: Path) -> None:
    results = ROOT / "results" / name
    matrix = load_matrix(name, ROOT)
    loaded = load_runs(matrix, results)
    made = texts(build(matrix, results, loaded))
    made |= {table: (tmp_path / table).read_text(encoding="utf-8") for table in write_tables(matrix, tmp_path, loaded)}
    for file, text in made.items():
        assert text == (results / file).read_text(encoding="utf-8"), file
    assert {path.name for path in results.glob("figures/*")} == {Path(name).name for name in made if "figures/" in name}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_runs_table_is_what_load_returns(name: str) -> None:
    loaded = load_runs(load_matrix(name, ROOT), ROOT / "results" / name)
    assert (ROOT / "results" / name / "runs.csv").read_text(encoding="utf-8") == to_csv(frame(all_runs(loaded)))
