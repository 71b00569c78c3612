"""Many specs in one call: order, budget, what is skipped and what is left for the next call."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harness import plans
from harness.contract import exitcodes
from harness.contract.errors import SpecError
from harness.contract.record import Record
from harness.contract.spec import RunSpec
from harness.plans import Batch, read_plan, table
from tests.engines.specs import make_spec
from tests.supervisor.conftest import Supervisor

Make = Callable[..., Supervisor]


def plan(path: Path, *specs: RunSpec) -> Path:
    path.write_text(json.dumps({"specs": [s.to_json() for s in specs]}))
    return path


def test_a_plan_is_a_file_or_a_folder(tmp_path: Path) -> None:
    first, second = make_spec("ddp"), make_spec("zero-1")
    assert read_plan(plan(tmp_path / "plan.json", first, second)) == [[first], [second]]
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "2.json").write_text(json.dumps(second.to_json()))
    (folder / "1.json").write_text(json.dumps(first.to_json()))
    assert read_plan(folder) == [[first], [second]]


def test_runs_of_a_pair_stay_together(tmp_path: Path) -> None:
    specs = [make_spec(name) for name in ("ddp", "fsdp2-reshard", "zero-3", "zero-1")]
    plain = {"specs": [s.to_json() for s in specs], "pairs": [[1, 2]]}
    (tmp_path / "plan.json").write_text(json.dumps(plain))
    assert read_plan(tmp_path / "plan.json") == [specs[:1], specs[1:3], specs[3:]]


def test_a_pair_starts_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: Supervisor) -> None:
    record = finished_run.record
    names = ("ddp", "fsdp2-reshard", "zero-3", "fsdp2-noreshard")
    ran = []

    def execute(spec: RunSpec, *_: object, **__: object) -> Record:
        ran.append(spec.identity.config)
        return structs.replace(record, wall_s=60.0)

    monkeypatch.setattr(plans, "execute", execute)
    ddp, fsdp, zero, last = (make_spec(name) for name in names)
    # Room for one more run as long as the first, and none for two.
    Batch([[ddp], [fsdp, zero], [last]], tmp_path, time.monotonic() + 90, None).run()
    assert ran == ["ddp", "fsdp2-noreshard"]


def test_the_rest_of_a_pair_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: Supervisor
) -> None:
    ran = []

    def execute(spec: RunSpec, *_: object, **__: object) -> Record:
        ran.append(spec.identity.config)
        return finished_run.record

    monkeypatch.setattr(plans, "execute", execute)
    fsdp, zero = make_spec("fsdp2-reshard"), make_spec("zero-3")
    shutil.copytree(finished_run.out, tmp_path / "test" / fsdp.path())
    batch = Batch([[fsdp, zero]], tmp_path, time.monotonic() + 90, None)
    batch._durations_s = {"fsdp2-reshard": 60.0, "zero-3": 60.0}
    batch.run()
    assert "zero-3" in ran


@pytest.mark.parametrize("pairs", ["[[0, 2]]", "[[1, 2], [0, 1]]", "[[2, 3]]", "[[]]", "[0]"])
def test_pairs_must_be_neighbours_in_the_plan(tmp_path: Path, pairs: str) -> None:
    specs = json.dumps([make_spec(name).to_json() for name in ("ddp", "zero-1", "zero-2")])
    (tmp_path / "plan.json").write_text(f'{{"specs": {specs}, "pairs": {pairs}}}')
    with pytest.raises(SpecError, match="pairs"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not JSON"),
        ("[]", "expected"),
        ('{"specs": [{}]}', r"specs\[0\]: spec_version: missing"),
        ('{"specs": [], "x": 1}', "nothing else"),
        ('{"specs": [], "frontiers": []}', "nothing else"),
    ],
)
def test_a_bad_plan_is_refused_whole(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(SpecError, match=words):
        read_plan(tmp_path / "plan.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=r"found no \.json file"):
        read_plan(tmp_path / "empty")


def test_a_plan_where_a_spec_belongs_is_explained(tmp_path: Path) -> None:
    plan(tmp_path / "plan.json", make_spec("ddp"))
    with pytest.raises(
        SpecError, match=r"plan\.json: found a plan of `batch` .* `python -m harness batch PLAN OUTROOT`"
    ):
        read_plan(tmp_path)


def test_the_table_lines_up() -> None:
    rows: list[tuple[RunSpec, str]] = [(make_spec("ddp"), "ok: 1 tok/s"), (make_spec("fsdp2-noreshard"), "not begun")]
    first, second = table(rows)
    assert first.index("ok:") == second.index("not begun")


def in_batch(supervise: Make, specs: list[RunSpec], *options: str) -> Supervisor:
    run = supervise(None)
    plan(run.spec_path, *specs)
    return run.start(*options, program=["-m", "harness", "batch"])


def test_a_batch_skips_finished_and_too_long_runs(supervise: Make, finished_run: Supervisor) -> None:
    done, other = finished_run.record.spec, make_spec("ddp", protocol__timed_steps=3)
    run = supervise(None)
    shutil.copytree(finished_run.out, run.out / "test" / done.path())
    plan(run.spec_path, done, other)
    run.start("--budget-s", "0", program=["-m", "harness", "batch"])
    assert run.wait() == exitcodes.RECORD_DELIVERED, run.stderr
    assert "already finished: ok" in run.stdout
    assert "left out: no time is left" in run.stdout
    assert not list((run.out / "test").glob(f"{other.path()}/record.json"))


def test_a_batch_without_time_keeps_damaged_records(supervise: Make, finished_run: Supervisor) -> None:
    done = finished_run.record.spec
    run = supervise(None)
    place = run.out / "test" / done.path()
    shutil.copytree(finished_run.out, place)
    (place / "try-1/rank-1.log").unlink()
    before = (place / "record.json").read_bytes()
    plan(run.spec_path, done)
    run.start("--budget-s", "1", program=["-m", "harness", "batch"])
    assert run.wait() == exitcodes.RECORD_DELIVERED, run.stderr
    assert "already finished: ok" in run.stdout
    assert "gone or changed: try-1/rank-1.log" in run.stdout
    assert (place / "record.json").read_bytes() == before
    assert (place / "try-1/rank-0.log").exists()
    newer = json.dumps(json.loads(before) | {"record_version": 99})
    (place / "record.json").write_text(newer)
    run.start("--budget-s", "1", program=["-m", "harness", "batch"])
    assert run.wait() == exitcodes.CONFIG
    assert "refused: " in run.stdout and "record_version: found 99" in run.stdout
    assert (place / "record.json").read_text() == newer


@pytest.mark.slow
def test_a_run_cut_by_the_budget_runs_again(supervise: Make) -> None:
    changes: dict[str, Any] = {"protocol__timed_steps": 100_000}
    short, long = make_spec("ddp", protocol__timed_steps=2), make_spec("fsdp2-reshard", **changes)
    run = in_batch(supervise, [short, long, make_spec("zero-1")], "--budget-s", "120")
    assert run.wait(400) == exitcodes.RECORD_DELIVERED, run.stderr
    run.assert_nothing_left()
    assert (run.out / "test" / short.path() / "record.json").exists()
    assert not (run.out / "test" / long.path() / "record.json").exists()
    assert "cancelled: the budget ran out" in run.stdout
    assert run.stdout.rstrip().endswith("not begun")
