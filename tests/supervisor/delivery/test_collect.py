"""The run's numbers out of the ranks': slowest rank, fullest rank, mean loss, flags."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harness.contract.heartbeat import RankExit
from harness.contract.measured import Found, Memory, RankResult, State
from harness.supervisor import collect
from tests.engines.specs import make_spec

FOUND = Found(
    parameter="float32", compute="bfloat16", gradient="float32", reduce="float32", master="float32",
    optimizer_state="float32", optimizer_class="AdamW",
)  # fmt: skip
SPEC = make_spec("ddp", protocol__warmup_steps=1, protocol__timed_steps=2)


def state(parameter_bytes: int) -> State:
    return State(
        parameter_bytes=parameter_bytes, gradient_bytes=0, optimizer_bytes=0, host_bytes=0, bytes_per_parameter=16.0,
        expected_bytes_per_parameter=16.0,
    )  # fmt: skip


def result(rank: int, **changes: Any) -> RankResult:
    values: dict[str, Any] = {
        "rank": rank, "world_size": 2, "parameters": 1000, "window_s": 1.0 + rank, "step_times_s": [0.4, 0.6 + rank],
        "warmup_step_times_s": [0.9], "loss": [4.0 + rank, 3.0, 2.0], "grad_norm": [None, 1.5, 1.0],
        "memory": Memory(), "state": None, "found": FOUND, "startup_s": {"import": 3.0 + rank}, "resolved": {},
        "versions": {}, "device_name": "cpu",
    }  # fmt: skip
    return RankResult(**{**values, **changes})


def test_step_time_is_the_slowest_ranks() -> None:
    measured = collect.merge([result(0), result(1)], SPEC)
    assert measured.step_time_s == 1.0
    assert measured.step_times_s == [0.4, 1.6]
    assert measured.tokens_per_step == 128
    assert measured.tokens_per_s == 128.0
    assert measured.tokens_per_s_per_gpu == 64.0
    assert measured.loss == [4.5, 3.0, 2.0]
    assert measured.grad_norm == [None, 1.5, 1.0]
    assert measured.startup_s == {"import": 4.0}
    assert (measured.step_time_p50_s, measured.step_time_p95_s) == (1.0, 1.6)


def test_gpu_busy_time_is_the_busiest_ranks() -> None:
    ranks = [result(rank, profile={"gpu_busy_s": busy, "dispatch_s": 0.2}) for rank, busy in enumerate((0.3, 0.4))]
    measured = collect.merge(ranks, SPEC)
    assert (measured.gpu_busy_s, measured.dispatch_s) == (0.4, 0.2)
    assert collect.merge([ranks[0], result(1)], SPEC).gpu_busy_s is None, "half a measurement is none"


def test_each_memory_figure_is_the_fullest_ranks() -> None:
    full = Memory(peak_allocated_bytes=30, peak_reserved_bytes=40, peak_phase="backward", alloc_retries=0)
    other = Memory(peak_allocated_bytes=20, peak_reserved_bytes=50, peak_phase="step", host_rss_peak_bytes=7)
    merged = collect.merge([result(0, memory=full, state=state(1)), result(1, memory=other, state=state(2))], SPEC)
    assert merged.memory == Memory(
        peak_allocated_bytes=30, peak_reserved_bytes=50, peak_phase="backward", alloc_retries=0, host_rss_peak_bytes=7
    )
    assert merged.memory_by_rank == [full, other]
    assert merged.state == state(2)


def test_an_unmeasured_figure_stays_null() -> None:
    assert collect.fullest([Memory(), Memory()]) == Memory()


def test_mfu_needs_a_known_card() -> None:
    assert collect.merge([result(0), result(1)], SPEC).mfu is None
    card = structs.replace(SPEC, platform=structs.replace(SPEC.platform, device="cuda", accelerator="h200"))
    measured = collect.merge([result(0), result(1)], card)
    assert measured.mfu is not None
    assert measured.mfu_causal is not None
    assert 0 < measured.mfu_causal < measured.mfu < 1


@pytest.mark.parametrize(
    ("changes", "throttled", "expected"),
    [
        ({"step_times_s": [1.0, 1.0]}, False, ()),
        ({"step_times_s": [1.0, 2.0]}, False, ("unstable",)),
        ({"step_times_s": [1.0, 1.0], "memory": Memory(alloc_retries=1)}, True, ("alloc_retries", "throttled")),
    ],
)
def test_flags_say_what_makes_the_numbers_doubtful(
    changes: dict[str, Any], throttled: bool, expected: tuple[str, ...]
) -> None:
    assert (
        collect.merge(
            [result(0, **changes), result(1, **changes)], SPEC, ("hw_thermal",) if throttled else ("power_cap",)
        ).flags
        == expected
    )


def test_faults_and_a_missing_profile_are_flagged() -> None:
    wanted = {"protocol__profiled_steps": 2, "protocol__timed_steps": 2}
    spec = make_spec("ddp", faults=[{"kind": "nan_loss"}], platform__device="cuda", **wanted)
    steady = {"step_times_s": [1.0, 1.0]}
    one_missing = [result(0, profile={"shares": {}}, **steady), result(1, **steady)]
    assert collect.merge(one_missing, spec).flags == ("faults", "profile_failed")
    assert collect.merge(one_missing, make_spec("ddp", **wanted)).flags == (), "a CPU has no profiled pass to miss"


def test_shares_of_averaged_profiles_add_up() -> None:
    first = {
        "steps": 2,
        "shares": {"compute": 0.5, "idle": 0.5},
        "nccl_share": 0.2,
        "collectives": {"a": {"dtypes": ["x"]}},
    }
    second = {"steps": 2, "shares": {"compute": 0.7, "idle": 0.3}, "nccl_share": 0.4, "collectives": {}}
    merged = collect.merge_profiles([first, second])
    assert merged is not None
    assert merged["steps"] == 2
    assert merged["shares"] == pytest.approx({"compute": 0.6, "idle": 0.4})
    assert merged["nccl_share"] == pytest.approx(0.3)
    assert merged["collectives"] == {"a": {"dtypes": ["x"]}}
    assert [p["nccl_share"] for p in merged["by_rank"]] == [0.2, 0.4]
    assert collect.merge_profiles([]) is None


def test_a_nan_loss_is_found() -> None:
    assert collect.not_finite([result(0), result(1)]) is None
    assert collect.not_finite([result(0), result(1, loss=[1.0, float("nan")])]) == (1, 1)


def test_results_count_only_when_every_rank_left_one(tmp_path: Path) -> None:
    (tmp_path / "exit-0.json").write_text('{"rank": 0, "exit_code": null, "signal": "SIGKILL", "at_s": 1.0}')
    (tmp_path / "exit-1.json").write_text("{")
    assert collect.read_exits(tmp_path, 2) == (
        RankExit(rank=0, exit_code=None, signal="SIGKILL", at_s=1.0),
        RankExit(rank=1, exit_code=None),
    )
    from harness.contract.codec import encode

    (tmp_path / "result-0.json").write_text(json.dumps(encode(result(0))))
    assert collect.read_results(tmp_path, 2) == []
    (tmp_path / "result-1.json").write_text(json.dumps(encode(result(1))))
    assert collect.read_results(tmp_path, 2) == [result(0), result(1)]


def test_energy_is_summed_over_ranks() -> None:
    ranks = [result(0, energy_j=100.0), result(1, energy_j=150.0)]
    assert collect.merge(ranks, SPEC).energy_j == 250.0
    assert collect.merge([result(0, energy_j=100.0), result(1)], SPEC).energy_j is None


def test_every_ranks_matmul_peak_is_kept() -> None:
    ranks = [result(i, preflight={"matmul": {"flops_per_s": peak}}) for i, peak in enumerate((8e14, 6e14))]
    assert (collect.merge(ranks, SPEC).preflight or {})["matmul_flops_per_s_by_rank"] == [8e14, 6e14]


def test_every_nodes_bandwidth_is_kept() -> None:
    spec = make_spec(
        "ddp", protocol__warmup_steps=1, protocol__timed_steps=2, platform__world_size=4, platform__nodes=2
    )
    plain = {"matmul": {"flops_per_s": 8e14}, "all_reduce": {"bus_bytes_per_s": 1e9}}
    inside = (4e11, 4e11, 3e11, 3e11)
    ranks = [result(i, preflight=plain | {"node_all_reduce": {"bus_bytes_per_s": b}}) for i, b in enumerate(inside)]
    preflight = collect.merge(ranks, spec).preflight or {}
    assert preflight["bus_bytes_per_s_by_node"] == [4e11, 3e11]
    assert "node_all_reduce" not in preflight
