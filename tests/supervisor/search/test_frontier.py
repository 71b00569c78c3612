"""The frontier found for real: two CPU ranks whose memory is capped, and allocations that the system refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contract import exitcodes
from harness.contract.codec import decode_file, encode
from harness.contract.engines.descriptor import NUMERIC_DTYPES
from harness.contract.errors import SpecError
from harness.contract.frontier import Frontier, FrontierPlan, FrontierSpec, search_bounds
from harness.contract.record import read_record
from harness.contract.spec import RunSpec
from harness.plans import _execute
from harness.supervisor.processes import Cancelled
from tests.engines.specs import make_spec
from tests.supervisor.conftest import Supervisor, until

Make = Callable[..., Supervisor]
PROGRAM = ["-m", "harness", "frontier"]


def wide_spec() -> RunSpec:
    """A model that is nearly all logits: 16 MiB of them, several times, for each sequence."""
    return make_spec(
        "fsdp2-reshard",
        numerics=dict.fromkeys(NUMERIC_DTYPES, "float32"),
        platform__memory_cap_gib=0.6,
        model__config__hidden_size=32,
        model__config__intermediate_size=64,
        model__config__num_hidden_layers=1,
        model__config__vocab_size=32768,
        data__sequence_length=128,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_search_still_finds_the_frontier(supervise: Make) -> None:
    search = supervise(wide_spec()).start("--limit", "32", "--rungs", "4", program=PROGRAM)
    until(lambda: list(search.out.glob("*/a1/record.json")), "the first probe", 500)
    assert search.process is not None
    search.process.kill()
    search.wait()
    search.assert_nothing_left()
    before = {path: path.stat().st_mtime_ns for path in search.out.glob("*/a1/record.json")}

    assert search.start("--limit", "32", "--rungs", "4", program=PROGRAM).wait(500) == exitcodes.RECORD_DELIVERED
    found = decode_file(Frontier, search.out / "frontier.json")
    assert found.ended == "found"
    assert found.largest_fit is not None
    assert found.smallest_fail == found.largest_fit + 1
    assert found.predicted is not None
    assert all(path.stat().st_mtime_ns == at_ns for path, at_ns in before.items()), "a probe was repeated"
    assert f"largest micro_batch {found.largest_fit}" in search.stdout

    records = [read_record(search.out / probe.folder / "record.json") for probe in found.probes]
    failing = [rung for probe in found.probes for rung in probe.rungs if rung.fits is False]
    assert failing
    for rung in failing:
        assert rung.outcome == "host_oom"
        assert rung.phase in ("forward", "backward", "step")
        assert rung.asked_bytes is not None
        assert rung.asked_bytes > 2**20
    for probe, record in zip(found.probes, records, strict=True):
        assert record.outcome == probe.outcome
        assert record.measured is not None
        assert record.measured.tokens_per_s is None, "a probe measures no speed"
        assert len(record.measured.frontier or ()) == len(probe.rungs)


def test_a_limit_below_the_resolution_is_refused(supervise: Make) -> None:
    search = supervise(wide_spec()).start("--limit", "0", program=PROGRAM)
    assert search.wait() == exitcodes.CONFIG
    assert "limit: found 0, expected 1 or more" in search.stderr
    assert not search.out.exists()


def test_a_plan_says_where_it_is_wrong(supervise: Make) -> None:
    search = supervise(None)
    search.spec_path.write_text(json.dumps({"frontiers": [{"folder": "x"}]}))
    assert search.start(program=PROGRAM).wait() == exitcodes.CONFIG
    assert "frontiers[0].spec: missing" in search.stderr


def plan(*configs: str) -> str:
    bounds = search_bounds("micro_batch", 4, None)
    wanted = tuple(FrontierSpec(spec=make_spec(c), bounds=bounds, folder=c) for c in configs)
    return json.dumps(encode(FrontierPlan(frontiers=wanted)))


def test_without_time_every_frontier_is_left_out(supervise: Make) -> None:
    search = supervise(wide_spec()).start("--budget-s", "0", program=PROGRAM)
    assert search.wait() == exitcodes.RECORD_DELIVERED, search.stderr
    left_out = "matched micro_batch: left out: no time is left; a second call goes on from here"
    assert f"cpu-x2 fsdp2-reshard {left_out}" in search.stdout
    search.spec_path.write_text(plan("ddp", "zero-1"))
    assert search.start("--budget-s", "0", program=PROGRAM).wait() == exitcodes.RECORD_DELIVERED, search.stderr
    assert f"cpu-x2 ddp {left_out}" in search.stdout
    assert f"cpu-x2 zero-1 {left_out}" in search.stdout
    assert not list(search.out.rglob("*.json"))


def test_without_time_an_earlier_probe_is_kept(tmp_path: Path, finished_run: Supervisor) -> None:
    record = finished_run.record
    place = tmp_path / record.spec.run_hash()[:12] / "a1"
    shutil.copytree(finished_run.out, place)
    assert _execute(record.spec, tmp_path, until_s=0.0, upload=None).outcome == "ok"
    with pytest.raises(Cancelled, match="no time is left"):
        _execute(make_spec("zero-1"), tmp_path, until_s=0.0, upload=None)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--over", "micro_batch"), ("--limit", "3"), ("--resolution", "1"), ("--rungs", "8"), ("--processes", "6")],
)
def test_a_plan_refuses_options_for_one_spec(supervise: Make, option: str, value: str) -> None:
    search = supervise(None)
    search.spec_path.write_text(plan("ddp"))
    assert search.start(option, value, program=PROGRAM).wait() == exitcodes.CONFIG
    assert f"found a plan together with {option}, which are for a single spec" in search.stderr
    assert not search.out.exists()


def test_bounds_have_defaults_by_axis() -> None:
    assert search_bounds("micro_batch", None, None).limit == 64
    assert search_bounds("sequence_length", None, None).resolution == 256
    assert (search_bounds("micro_batch", None, None).rungs, search_bounds("micro_batch", None, None).processes) == (
        8,
        6,
    )
    assert search_bounds("micro_batch", None, None, 3, 2).rungs == 3
    with pytest.raises(SpecError, match="at least the resolution"):
        FrontierSpec(spec=wide_spec(), bounds=search_bounds("sequence_length", 100, None))
