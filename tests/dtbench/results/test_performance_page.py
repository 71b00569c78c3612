"""Every figure of docs/performance.md that comes from a stored record is what that record says today.

What has no record (the workflow on CPUs, DeepSpeed's launcher) is left to the command beside it.
"""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable

import pytest
from dtbench.results import numbers
from dtbench.results.cells import CellResult
from dtbench.results.numbers import Value
from dtbench.results.stats import Ratio
from msgspec import structs

from harness.contract.frontier import predicted_limit, search_bounds
from harness.contract.measured import Measured
from harness.contract.record import Record
from harness.contract.units import GB, GIB
from harness.diagnosis.memory import read_shortage
from harness.measure.ledger import predict, predicted_peak_bytes
from tests.dtbench.results.test_figures import PERFORMANCE, ROOT, cell, results

ONE, TWO = ("h200-x1-2026", "h200-x1"), ("h200-x2-2026", "h200-x2")
TEXT = re.sub(r"\s+", " ", PERFORMANCE)


def matched(study: tuple[str, str], config: str) -> CellResult:
    return cell(*study, config, "matched")


def records(found: CellResult) -> list[Record]:
    return [run.newest.record for run in found.finished if run.newest]


def measured(found: CellResult) -> list[Measured]:
    return [m for record in records(found) if (m := record.measured)]


def mean(config: str, value: Value) -> float:
    return matched(ONE, config).mean(value) or 0.0


def ratio(study: tuple[str, str], above: str, below: str) -> Ratio:
    found = results(study[0]).speed_ratio(matched(study, above), matched(study, below))
    assert found is not None
    return found


def speeds(found: CellResult, machines: Iterable[str]) -> list[str]:
    by_machine: dict[str | None, list[float]] = defaultdict(list)
    for sample in found.samples(numbers.tokens_per_s):
        by_machine[sample.machine].append(sample.value)
    return [f"{statistics.median(by_machine[name]):,.0f}" for name in machines]


@pytest.mark.parametrize(("suffix", "machines"), [("", ["m1"]), ("-mb4", ["m1", "m2", "m3"]), ("-mb6", ["m2", "m3"])])
def test_speeds_by_machine_hold(suffix: str, machines: list[str]) -> None:
    fast, slow = (matched(ONE, name + suffix) for name in ("fsdp2-reshard", "zero-3"))
    assert f"| {'; '.join(speeds(fast, machines))} | {'; '.join(speeds(slow, machines))} |" in PERFORMANCE


def test_an_engines_own_cost_holds() -> None:
    rows = {name: ratio(ONE, "ddp", name) for name in ("fsdp2-reshard", "zero-2", "zero-3")}
    texts = [f"{r.value:.2f}x ({r.low:.2f} to {r.high:.2f})" for r in rows.values()]
    assert f"| micro-batch 1 | {speeds(matched(ONE, 'ddp'), ['m1'])[0]} | {' | '.join(texts)} |" in PERFORMANCE
    r = ratio(ONE, "ddp-mb4", "zero-3-mb4")
    assert f"{r.value:.2f}x ({r.low:.2f} to {r.high:.2f}) |" in PERFORMANCE
    idle = [mean(name, numbers.timed_share("idle")) for name in ("ddp", *rows)]
    assert f"micro-batch 1, mean | {' | '.join(f'{share:.0%}' for share in idle)} |" in PERFORMANCE
    longer = {name: mean(name, numbers.profiled_step_s) / mean(name, numbers.step_time_s) for name in rows}
    assert f"ZeRO-3's step {longer['zero-3'] - 1:.0%} longer and FSDP2's {longer['fsdp2-reshard'] - 1:.0%}" in TEXT


def test_the_price_of_offload_holds() -> None:
    told, each = [], []
    for name in ("fsdp2-reshard", "zero-3"):
        here, away = matched(ONE, name), matched(ONE, f"{name}-offload")
        saved_gb = ((here.peak() or 0) - (away.peak() or 0)) / GB
        slower = results(ONE[0]).difference(away, here, numbers.step_time_s) or 0
        told.append(((here.peak() or 0) / GB, (away.peak() or 0) / GB, ratio(ONE, name, f"{name}-offload").value))
        each.append(slower * 1000 / saved_gb)
    (a, b, slower_a), (c, d, slower_b) = told
    assert f"from {a:.1f} to {b:.1f} GB and trains {slower_a:.1f}x slower" in TEXT
    assert f"from {c:.1f} to {d:.1f} GB and {slower_b:.1f}x slower" in TEXT
    assert f"That is {each[0]:.0f} and {each[1]:.0f} ms a step for each GB" in TEXT


@pytest.mark.parametrize(
    ("config", "over", "unit"),
    [
        ("fsdp2-reshard", "micro_batch", "micro-batch, sequence 2048"),
        ("zero-3", "micro_batch", "micro-batch, sequence 2048"),
        ("fsdp2-reshard", "sequence_length", "sequence, micro-batch 1"),
        ("zero-3", "sequence_length", "sequence, micro-batch 1"),
    ],
)
def test_frontiers_hold(config: str, over: str, unit: str) -> None:
    path = ROOT / "results" / TWO[0] / "frontier" / TWO[1] / config / "matched" / over / "frontier.json"
    found = json.loads(path.read_text())
    spec = matched(TWO, config).cell.spec
    assert spec is not None
    spec = structs.replace(spec, protocol=structs.replace(spec.protocol, ladder_over=over))
    bounds = search_bounds(over, None, None, 8, 6)  # type: ignore[arg-type]
    predicted = predicted_limit(spec, bounds, found["capacity_bytes"], predicted_peak_bytes)
    row = f"| {config} | {unit} | {found['largest_fit']:,} | {found['smallest_fail']:,} | {predicted:,} |"
    assert row in PERFORMANCE


def test_the_peak_and_what_is_reached_hold() -> None:
    (near,) = measured(matched(TWO, "fsdp2-reshard-mb8"))
    probe = near.preflight or {}
    peak = probe["matmul"]["flops_per_s"]
    assert f"| {peak / 1e12:.0f} TFLOP/s |" in PERFORMANCE
    assert f"| {probe['all_reduce']['bus_bytes_per_s'] / 1e9:.0f} GB/s |" in PERFORMANCE
    assert near.mfu and near.mfu_causal
    assert f"| {near.mfu:.1%} / {near.mfu_causal:.1%} |" in PERFORMANCE
    assert f"| {near.mfu_causal * 989e12 / peak:.1%} |" in PERFORMANCE


def test_the_ledger_over_measured_holds() -> None:
    def over(config: str) -> str:
        record = records(matched(TWO, config))[-1]
        ledger = predict(record.spec)
        assert ledger and record.measured and record.measured.memory
        return f"{ledger.device_peak / (record.measured.memory.peak_allocated_bytes or 1):.2f}"

    assert f"micro-batch 1 / 8 | {over('fsdp2-reshard')} / {over('fsdp2-reshard-mb8')} |" in PERFORMANCE
    assert f"ZeRO-3: the same, micro-batch 1 | {over('zero-3')} |" in PERFORMANCE


@pytest.mark.parametrize("config", ["fsdp2-reshard", "zero-3"])
def test_hosts_that_differ_hold(config: str) -> None:
    first, second, third = sorted(s.value for s in cell(*TWO, config, "defaults").samples(numbers.tokens_per_s))
    assert f"gave {first:,.0f}, {second:,.0f} and {third:,.0f} tok/s" in TEXT


@pytest.mark.parametrize(("config", "words"), [("fsdp2-reshard-mb8", "8"), ("zero-3-mb4", "4")])
def test_tuned_trials_hold(config: str, words: str) -> None:
    found = cell("h200-x2-tuned", "h200-x2", config, "tuned")
    (one,) = measured(found)
    trials = [f"{t.tokens_per_s:,.0f}" for t in one.search or ()]
    row = f"micro-batch {words} | {' | '.join(trials)} | {one.tokens_per_s:,.0f} |"
    assert row in PERFORMANCE


@pytest.mark.parametrize(
    ("cap", "config", "name"),
    [
        (31, "fsdp2-reshard", "fsdp2-reshard"),
        (36, "fsdp2-noreshard", "fsdp2-noreshard"),
        (69, "fsdp2-reshard-mb4", "fsdp2-reshard, micro-batch 4"),
        (78, "zero-3-mb4", "zero-3, micro-batch 4"),
    ],
)
def test_cured_fragmentation_holds(cap: int, config: str, name: str) -> None:
    found = cell("h200-x2-fragments", f"h200-x2-{cap}gb", config, "matched")
    (record,) = records(found)
    shortage = next(s for e in record.tries[0].diagnosis.evidence if (s := read_shortage(e.text)).asked)
    told = ", ".join(f"{(b or 0) / GIB:.2f}" for b in (shortage.asked, shortage.free, shortage.unallocated))
    peak, speed = (found.peak() or 0) / GIB, found.median(numbers.tokens_per_s) or 0
    assert f"| {name} | {cap} | {told} | {peak:.2f}, {speed:,.0f} |" in PERFORMANCE


@pytest.mark.parametrize("config", ["fsdp2-reshard", "zero-3"])
def test_start_up_parts_hold_and_add_up(config: str) -> None:
    runs = [m.startup_s for m in measured(matched(TWO, config))]
    parts = [statistics.median(run[part] for run in runs) for part in ("import", "preflight", "build", "warmup")]
    sums = sorted(sum(run.values()) for run in runs)
    told = " | ".join(f"{part:.1f} s" for part in parts)
    middle = statistics.median(sums)
    assert f"| {config} | {told} | {middle:.1f} s ({sums[0]:.1f} to {sums[-1]:.1f}) |" in PERFORMANCE


def test_the_trainers_pairs_hold() -> None:
    for row in json.loads((ROOT / "benchmarks/results/h200-x2-trainer-pairs.json").read_text()):
        sides = row["ours_tokens_per_s"], row["peer_tokens_per_s"]
        pairs = len([pair for pair in zip(*sides, strict=True) if all(pair)])
        config = row["config"].removesuffix(f"-mb{row['micro_batch']}")
        ours, peer = (f"{statistics.median(v for v in side if v):,.0f}" for side in sides)
        assert f"| {config} | {row['micro_batch']} | {pairs} | {ours} | {peer} |" in PERFORMANCE
