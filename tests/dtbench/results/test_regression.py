"""`dtbench compare` fails for a slowdown beyond noise and for nothing else; stored records give the noise."""

import json
import random
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from dtbench import cli
from dtbench.results.machines import machines
from dtbench.results.regression import Comparison, compare, text
from dtbench.results.runs import Run, read_runs
from dtbench.results.sides import Side, read_side
from dtbench.study.matrix import Matrix
from msgspec import structs

from harness.contract.errors import SpecError
from harness.contract.record import Environment, Record
from harness.contract.spec import RunSpec
from tests.dtbench.conftest import GPU_STUDY, ROOT, make_record, write_record

Load = Callable[[str], Matrix]
RESAMPLINGS = 100
GPU_BOUND, HOST_BOUND = 0.02, 0.5


@pytest.fixture(scope="module")
def stored() -> list[Run]:
    """The finished runs of the study on one H200."""
    return [run for run in read_runs(ROOT / "results/h200-x1-2026") if run.outcome == "ok"]


def cells(runs: Iterable[Run]) -> dict[tuple[str, ...], list[Run]]:
    """Runs by cell and machine."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        found.setdefault((run.spec.identity.config, run.spec.identity.arm, run.machine or ""), []).append(run)
    return found


def renumbered(run: Run, repeat: int, speed: float = 1.0) -> Run:
    """The run as another repeat, and as if it had trained `speed` times as fast."""
    (attempt,) = run.attempts
    record = attempt.record
    spec = structs.replace(run.spec, identity=structs.replace(run.spec.identity, repeat=repeat))
    assert record.measured and record.measured.tokens_per_s
    measured = structs.replace(record.measured, tokens_per_s=record.measured.tokens_per_s * speed)
    record = structs.replace(record, spec=spec, measured=measured)
    return Run(spec=spec, attempts=(type(attempt)(path=spec.path(), record=record, diagnosis=attempt.diagnosis),))


def resampled(
    name: str, groups: Iterable[list[Run]], draw: random.Random, *, runs: int | None = None, speed: float = 1.0
) -> Side:
    """Every group drawn anew, with replacement, on its own machine; `runs` of each, or as many as it has."""
    drawn: list[Run] = []
    for group in groups:
        first = 1 + sum(run.spec.identity.config == group[0].spec.identity.config for run in drawn)
        drawn += [renumbered(draw.choice(group), first + n, speed) for n in range(runs or len(group))]
    return Side(name=name, runs=tuple(drawn))


def test_equal_sides_never_fail(stored: list[Run]) -> None:
    groups = [group for group in cells(stored).values() if len(group) >= 3]
    assert len(groups) >= 10
    for seed in range(RESAMPLINGS):
        draw = random.Random(seed)
        found = compare(resampled("a", groups, draw), resampled("b", groups, draw))
        assert found.exit_status == 0, text(found)
        assert sum(cell.verdict == "noise" for cell in found.cells) == len(found.cells), text(found)


def test_three_pairs_show_a_planted_slowdown(stored: list[Run]) -> None:
    quiet = [g[:3] for (config, *_), g in cells(stored).items() if len(g) >= 3 and config in ("ddp-mb4",)]
    (runs,) = quiet
    base = Side(name="base", runs=tuple(renumbered(run, n) for n, run in enumerate(runs, 1)))
    # The slow side's repeats are in another order, so that the pairs carry the noise between repeats.
    slow = Side(name="slow", runs=tuple(renumbered(run, n, 0.92) for n, run in enumerate(reversed(runs), 1)))
    found = compare(base, slow)
    (cell,) = found.cells
    assert (cell.verdict, found.exit_status, cell.ratio and cell.ratio.n) == ("slower", 1, 3), text(found)
    assert compare(base, slow, 0.10).exit_status == 0
    assert compare(slow, base).cells[0].verdict == "gain"
    assert compare(slow, base).exit_status == 0


def test_gpu_bound_cells_show_every_planted_slowdown(stored: list[Run]) -> None:
    groups = [group for group in cells(stored).values() if len(group) >= 3]
    for seed in range(25):
        draw = random.Random(seed)
        sides = [resampled(name, groups, draw, runs=3, speed=speed) for name, speed in (("base", 1.0), ("slow", 0.92))]
        found = compare(*sides)
        decided = [cell for cell in found.cells if cell.bound == "gpu"]
        assert {cell.config for cell in decided} >= {"ddp-mb4", "fsdp2-reshard-mb4", "fsdp2-reshard-mb6"}
        assert {cell.verdict for cell in decided} == {"slower"}, text(found)


def on(record: Record, boot: str, idle: float | None, version: str) -> Record:
    assert record.measured and record.measured.step_time_s
    step_s = record.measured.step_time_s
    profile = idle if idle is None else {"window_s": step_s, "steps": 1, "shares": {"idle": idle}}
    environment = Environment(
        host={"boot": boot}, device_name="H200", git_commit=None, versions={"torch": version}, variables={}
    )
    return structs.replace(record, environment=environment, measured=structs.replace(record.measured, profile=profile))


def lay(
    folder: Path, specs: Iterable[RunSpec], speeds: tuple[float, ...], boot: str, idle: float | None, version: str = "1"
) -> Side:
    for spec, speed in zip(specs, speeds, strict=True):
        write_record(folder, on(make_record(spec, tokens_per_s=speed), boot, idle, version))
    return read_side(str(folder))


def three(matrix: Matrix) -> list[RunSpec]:
    runs = [run for run in matrix.runs if run.identity.config == "zero-3"]
    return sorted(runs, key=lambda run: run.identity.repeat)


def verdict(found: Comparison) -> str:
    (cell,) = found.cells
    return cell.verdict


FAST, SLOW = (1000.0, 1002.0, 998.0), (900.0, 902.0, 898.0)


@pytest.mark.parametrize(
    ("boot", "idle", "expected", "status"),
    [
        ("a", GPU_BOUND, "slower", 1),
        ("a", HOST_BOUND, "slower", 1),
        ("a", None, "slower", 1),
        ("b", GPU_BOUND, "slower", 1),
        ("b", HOST_BOUND, "apart", 2),
        ("b", None, "apart", 2),
    ],
)
def test_without_a_shared_machine_only_gpu_bound_decides(
    tmp_path: Path, study: Load, boot: str, idle: float | None, expected: str, status: int
) -> None:
    specs = three(study(GPU_STUDY))
    found = compare(lay(tmp_path / "a", specs, FAST, "a", idle), lay(tmp_path / "b", specs, SLOW, boot, idle))
    assert (verdict(found), found.exit_status) == (expected, status), text(found)


def test_noisy_repeats_hide_a_slowdown(tmp_path: Path, study: Load) -> None:
    specs = three(study(GPU_STUDY))
    noisy = (1000.0, 1150.0, 870.0)
    slow = tuple(speed * 0.92 for speed in noisy)
    found = compare(lay(tmp_path / "a", specs, noisy, "a", None), lay(tmp_path / "b", specs, slow, "a", None))
    assert (verdict(found), found.exit_status) == ("noise", 0)


def test_one_run_a_side_decides_nothing(tmp_path: Path, study: Load) -> None:
    specs = three(study(GPU_STUDY))[:1]
    sides = lay(tmp_path / "a", specs, (1000.0,), "a", None), lay(tmp_path / "b", specs, (500.0,), "a", None)
    assert (verdict(compare(*sides)), compare(*sides).exit_status) == ("unknown", 2)


def test_a_run_that_dies_now_is_named(tmp_path: Path, study: Load) -> None:
    specs = three(study(GPU_STUDY))
    base = lay(tmp_path / "a", specs, FAST, "a", None)
    for spec in specs:
        write_record(tmp_path / "b", make_record(spec, outcome="cuda_oom"))
    found = compare(base, read_side(str(tmp_path / "b")))
    assert (verdict(found), found.exit_status) == ("broken", 2)
    assert "no longer finishes (most runs ended as: BASE ok, NEW cuda_oom)" in text(found)


def test_another_spec_is_another_cell(tmp_path: Path, study: Load) -> None:
    specs = three(study(GPU_STUDY))
    longer = [structs.replace(s, protocol=structs.replace(s.protocol, timed_steps=99)) for s in specs]
    found = compare(lay(tmp_path / "a", specs, FAST, "a", None), lay(tmp_path / "b", longer, FAST, "a", None))
    assert (found.cells, found.exit_status) == ((), 2)
    steps = specs[0].protocol.timed_steps
    assert found.unmatched == (f"h200-x2 zero-3 matched: the specs differ in protocol.timed_steps ({steps} to 99)",)


def test_another_study_name_is_the_same_cell(tmp_path: Path, study: Load) -> None:
    specs = three(study(GPU_STUDY))
    renamed = [structs.replace(s, identity=structs.replace(s.identity, study="later")) for s in specs]
    found = compare(lay(tmp_path / "a", specs, FAST, "a", None), lay(tmp_path / "b", renamed, FAST, "a", None))
    assert verdict(found) == "noise"


def test_versions_of_one_folder_are_sides(tmp_path: Path, study: Load, capsys: pytest.CaptureFixture[str]) -> None:
    specs = three(study(GPU_STUDY))
    again = [structs.replace(s, identity=structs.replace(s.identity, attempt=2)) for s in specs]
    lay(tmp_path / "x", specs, FAST, "a", None, "2.11")
    lay(tmp_path / "x", again, SLOW, "a", None, "2.13")
    sides = [f"{tmp_path / 'x'}@torch={version}" for version in ("2.11", "2.13")]
    assert cli.main(["compare", *sides, "--max-slowdown", "5%"]) == 1
    said = capsys.readouterr().out
    assert said.index("torch: 2.11 -> 2.13") < said.index("zero-3 matched: slower; 0.900x")
    assert cli.main(["compare", *sides, "--json", "--max-slowdown", "0.2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["exit_status"], told["cells"][0]["verdict"]) == (0, "within")


@pytest.mark.parametrize("side", ["nowhere", "nowhere@x", "."])
def test_a_side_without_records_is_refused(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", side, side]) == 64
    assert "expected" in capsys.readouterr().err


def test_runs_without_a_study_get_the_report_machines() -> None:
    runs = read_runs(ROOT / "results/h200-x1-2026")
    places = machines({run.newest.path: run.newest.record for run in runs if run.newest})
    assert {run.machine for run in runs} == set(places.values()) >= {"m1", "m2", "m3"}


@pytest.mark.parametrize(
    ("side", "said"),
    [
        ("@machine=m9", "found no record with machine 'm9'; allowed: m1, m2"),
        ("@comit=1a2b", "found no record that names 'comit'; allowed: commit, machine, "),
        ("@torch=9.9", "found no record with torch '9.9'; allowed: 2.11.0"),
    ],
)
def test_a_side_without_records_says_what_there_is(side: str, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        read_side(f"{ROOT}/results/h200-x1-2026{side}")


def test_a_folder_may_hold_an_at_sign(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results/published", tmp_path / "a@b=c")
    assert read_side(str(tmp_path / "a@b=c")).runs
    with pytest.raises(SpecError, match="with machine 'm1'; no record of this folder has a machine"):
        read_side(f"{tmp_path}/a@b=c@machine=m1")
