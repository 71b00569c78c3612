"""The bill before a study starts: what is cached, minutes by stored records, dollars by offer, and the refusal."""

import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench import cli
from dtbench.bill import bill_of, like_seconds
from dtbench.study.matrix import Matrix

from harness.contract.record import read_record
from tests.dtbench.conftest import ROOT, make_record

TODAY = datetime.date(2026, 12, 3)
STUDY = """
platforms: [%s]
configs: [ddp, zero-3]
arms: [matched]
repeats: %d
protocol: {preset: published}
"""
Load = Callable[[str], Matrix]


def keep(matrix: Matrix, results: Path, count: int) -> None:
    """Store records of the first runs, 60 s each."""
    for spec in matrix.runs[:count]:
        folder = results / spec.path()
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(make_record(spec).to_json()))


def test_cached_runs_cost_nothing(tmp_path: Path, study: Load) -> None:
    matrix = study(STUDY % ("a100-40gb-x4", 3))
    keep(matrix, tmp_path / "all", 6)
    bill = bill_of(matrix, tmp_path / "all")
    assert (bill.cached, bill.platforms, bill.usd) == (6, (), 0)


def test_like_runs_give_minutes_and_dollars(tmp_path: Path, study: Load) -> None:
    matrix = study(STUDY % ("a100-40gb-x4", 3))
    keep(matrix, tmp_path / "all", 2)
    bill = bill_of(matrix, tmp_path / "all")
    assert (bill.cached, bill.platforms[0].seconds, bill.gaps) == (2, 240, [])
    assert bill.usd == pytest.approx(5.17342 * 240 / 3600)
    said = "\n".join(bill.lines(TODAY))
    assert "a100-40gb-x4: 4 runs, about 4.0 minutes" in said
    assert "a2-highgpu-4g/us-central1/spot: $0.34 at $5.17 an hour (read on 2025-03-06, 637 days ago: old" in said
    assert "a2-highgpu-4g/us-central1/on-demand: $0.98" in said


def test_an_unknown_price_is_said_and_planned(tmp_path: Path, study: Load) -> None:
    bill = bill_of(study(STUDY % ("h200-x2", 1)), tmp_path / "none")
    said = "\n".join(bill.lines(TODAY))
    assert "price unknown: give the platform offers" in said
    assert "no like run has a record: ddp matched, zero-3 matched" in said
    assert "total: dollars unknown" in said


def test_a_bill_above_the_limit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, study: Load
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("os.execve", lambda *ignored: pytest.fail("started"))
    matrix = study(STUDY % ("a100-40gb-x4", 3))
    command = ["start", str(matrix.path), "--results", str(tmp_path / "results"), "--max-usd"]
    assert cli.main([*command, "100"]) == 64
    assert "unknown without the minutes of ddp matched on a100-40gb-x4" in capsys.readouterr().err
    keep(matrix, tmp_path / "results" / matrix.study.name, 2)
    assert cli.main([*command, "0.3"]) == 64
    assert "found a bill of $0.34, expected at most $0.30" in capsys.readouterr().err


def test_a_thousand_runs_are_billed_fast(tmp_path: Path, study: Load) -> None:
    matrix = study(STUDY % ("a100-40gb-x4", 500))
    keep(matrix, tmp_path / "all", 40)
    began = time.process_time()
    assert bill_of(matrix, tmp_path / "all").platforms[0].runs == 960
    assert time.process_time() - began < 3


def test_stored_gpu_runs_took_what_was_predicted(tmp_path: Path) -> None:
    """Later runs on H200s are predicted by earlier records alone; sums are held, since hosts differ."""
    records = [read_record(file) for file in (ROOT / "results").glob("h200-x*-2026/*/*/*/*/a*/record.json")]
    done = sorted((r for r in records if r.outcome == "ok" and r.started_at), key=lambda r: str(r.started_at))
    predicted = took = 0.0
    for record in done:
        earlier = like_seconds(record.spec, tmp_path)
        if earlier and record.wall_s:
            predicted, took = predicted + sum(earlier) / len(earlier), took + record.wall_s
        folder = tmp_path / record.spec.identity.study / record.spec.path()
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(record.to_json()))
    print(f"predicted {predicted:.0f} s, took {took:.0f} s")
    assert took > 1000
    assert predicted == pytest.approx(took, rel=0.15)
