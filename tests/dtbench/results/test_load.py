"""`dtbench.load`: a row a run, described columns, the same numbers as the records; the example notebook runs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dtbench
import jsonschema
import nbformat
import pandas as pd
import pytest
from dtbench import cli
from dtbench.results.frame import PARQUET, dictionary
from dtbench.study.matrix import Matrix

from harness.contract.errors import SpecError
from tests.dtbench.conftest import GPU_STUDY, ROOT, make_record, run_of, write_record

Load = Callable[[str], Matrix]
H200 = ROOT / "results/h200-x2-2026"


@pytest.fixture
def folder(tmp_path: Path, study: Load) -> Path:
    """Two runs that count and one that died."""
    matrix = study(GPU_STUDY)
    for config, made in (("ddp", {"energy_j": 6000.0}), ("zero-3", {}), ("fsdp2-reshard", {"outcome": "cuda_oom"})):
        write_record(tmp_path / "x", make_record(run_of(matrix, config), **made))
    return tmp_path / "x"


def test_every_run_is_one_row(folder: Path) -> None:
    table = dtbench.load(folder).set_index("config")
    assert table.outcome.to_dict() == {"ddp": "ok", "zero-3": "ok", "fsdp2-reshard": "cuda_oom"}
    assert table.loc["ddp", "tokens_per_s"] == 1000.0
    assert table.loc["zero-3", "engine"] == "zero"
    assert table.loc["ddp", "micro_batch"] == 1


def test_a_run_that_died_has_no_numbers(folder: Path) -> None:
    table = dtbench.load(folder).set_index("config")
    measured = ["tokens_per_s", "step_time_s", "peak_bytes", "peak_allocated_bytes", "state_bytes_per_parameter"]
    assert table.loc["fsdp2-reshard", measured].isna().all()
    assert table.loc["zero-3", measured].notna().all()


def test_types_do_not_depend_on_the_runs(folder: Path) -> None:
    assert dtbench.load(folder).dtypes.to_dict() == dtbench.load(H200).dtypes.to_dict()


def test_several_studies_share_one_table(folder: Path) -> None:
    both = dtbench.load(folder, H200)
    assert both.study.nunique() == 2
    assert len(both) == 3 + len(dtbench.load(H200))


def test_every_column_has_its_own_description() -> None:
    described = dtbench.columns()
    assert list(described.column) == list(dtbench.load(H200).columns)
    # A name that is only repeated as a sentence says nothing; these names are words that need no more.
    plain = {name for name, text in zip(described.column, described.description, strict=True)
             if text.rstrip(".").lower() == name.replace("_", " ")}  # fmt: skip
    assert plain <= {"sequence_length", "gradient_accumulation"}


def test_the_dictionary_describes_the_csv_rows(folder: Path, tmp_path: Path) -> None:
    assert cli.main(["load", str(folder), "--csv", str(tmp_path / "runs.csv")]) == 0
    schema = json.loads((tmp_path / "runs.schema.json").read_text())
    table = pd.read_csv(tmp_path / "runs.csv")
    assert list(schema["properties"]) == list(table.columns)
    rows = json.loads(dtbench.load(folder).to_json(orient="records"))
    assert len(rows) == 3
    for row in rows:
        jsonschema.validate(row, schema)


def test_parquet_keeps_the_table(folder: Path, tmp_path: Path) -> None:
    assert cli.main(["load", str(folder), "--parquet", str(tmp_path / "runs.parquet")]) == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "runs.parquet"), dtbench.load(folder))


def test_parquet_without_pyarrow_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(*ignored: object, **also: object) -> None:
        raise ImportError("no pyarrow")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", without)
    assert cli.main(["load", str(folder), "--parquet", str(tmp_path / "runs.parquet")]) == 64
    assert PARQUET in capsys.readouterr().err
    assert not list(tmp_path.glob("runs*"))


def test_the_terminal_gets_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["load", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ",".join(dictionary()["properties"])
    assert len(lines) == 4


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_without_records_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="expected"):
        dtbench.load(tmp_path / name)


def test_the_example_notebook_runs() -> None:
    # Its cells are plain Python, so a bare interpreter runs them; a Jupyter kernel would bring twenty packages more.
    notebook = nbformat.read(ROOT / "examples/load.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) > 5
    head = "import matplotlib; matplotlib.use('Agg')"
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", "\n".join([head, *cells])],
        capture_output=True, text=True, check=False, cwd=ROOT / "examples", timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "save it with its outputs"
