"""Only what trains the same is compared: other tokens a step, or other numerics where they must be equal, are not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import Report, build, write_report
from dtbench.study.matrix import Matrix

from harness.contract.errors import SpecError
from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record

Load = Callable[[str], Matrix]
SPEEDS = {"ddp": 1000.0, "fsdp2-reshard": 800.0, "zero-3": 400.0}


def lay(folder: Path, matrix: Matrix) -> Report:
    for run in matrix.runs:
        write_record(folder, make_record(run, tokens_per_s=SPEEDS.get(run.identity.config, 500.0)))
    return build(matrix, folder)


def kinds(context: Report) -> list[str]:
    return [finding.kind for finding in context.findings]


def test_another_micro_batch_is_marked_and_not_compared(tmp_path: Path, study: Load) -> None:
    matrix = study(
        GPU_STUDY.replace("[h200-x2]", "[h200-x2, h200-x2-thin]")
        + "overrides: [{config: zero-3, platform: h200-x2-thin, set: {data: {micro_batch: 4}}}]\n"
    )
    context = lay(tmp_path, matrix)
    assert [f.numbers["platform"] for f in context.findings if f.kind == "head_to_head"] == ["h200-x2"]
    (pipe,) = [f for f in context.findings if f.kind == "pipe"]
    assert "zero-3" not in pipe.numbers
    text = write_report(matrix, tmp_path).read_text()
    assert "| zero-3 (micro-batch 4) | 400 |" in text
    assert "| zero-3 | matched | 400 | 400 (micro-batch 4) |" in text


def test_only_equal_numerics_are_compared(tmp_path: Path, study: Load) -> None:
    low = "{name: fsdp2-reshard-low, base: fsdp2-reshard, override: {numerics: {reduce: bfloat16}}}"
    other = "{name: zero-3-low, base: zero-3, override: {numerics: {reduce: bfloat16}}}"
    clip = "{name: zero-3-noclip, base: zero-3, override: {optimizer: {clip_norm: 0.0}}}"
    context = lay(tmp_path, study(GPU_STUDY.replace("zero-3]", f"zero-3, {low}, {other}, {clip}]")))
    heads = [f.sentence for f in context.findings if f.kind == "head_to_head"]
    assert len(heads) == 2
    assert heads[0].startswith("h200-x2, matched: `fsdp2-reshard` trains 2.00x as fast as `zero-3`")
    assert heads[1].startswith(
        "h200-x2, matched: `fsdp2-reshard-low` and `zero-3-low` are equally fast within the noise"
    )
    rows = {row.config: row.peculiar for row in context.platforms[0].tables[0].rows}
    assert rows == {
        "ddp": "",
        "fsdp2-reshard": "",
        "zero-3": "",
        "fsdp2-reshard-low": "reduce bfloat16",
        "zero-3-low": "reduce bfloat16",
        "zero-3-noclip": "clip norm 0.0",
    }
    assert [choice.where for choice in context.choices] == [
        "h200-x2, matched, the arm's numerics",
        "h200-x2, matched, reduce bfloat16",
        "h200-x2, matched, clip norm 0.0",
    ]


def test_the_defaults_arm_compares_different_numerics(tmp_path: Path, study: Load) -> None:
    matrix = study(
        GPU_STUDY.replace("[matched]", "[defaults]")
        + "overrides: [{config: zero-3, set: {numerics: {reduce: float32}}}]\n"
    )
    assert "head_to_head" in kinds(lay(tmp_path, matrix))


def test_variants_with_one_suffix_are_twins(tmp_path: Path, study: Load) -> None:
    names = [f"{{name: {base}-mb4, base: {base}, override: {{data: {{micro_batch: 4}}}}}}" for base in SPEEDS]
    matrix = study(GPU_STUDY.replace("zero-3]", f"zero-3, {', '.join(names)}]"))
    larger = {"fsdp2-reshard-mb4": 1500.0, "zero-3-mb4": 1000.0}
    for run in matrix.runs:
        write_record(tmp_path, make_record(run, tokens_per_s=(SPEEDS | larger).get(run.identity.config, 900.0)))
    heads = {f.numbers["config"]: f.numbers["ratio"] for f in build(matrix, tmp_path).findings if "ratio" in f.numbers}
    assert heads == {"fsdp2-reshard": pytest.approx(2.0), "fsdp2-reshard-mb4": pytest.approx(1.5)}


def test_one_rank_shows_an_engines_own_cost(tmp_path: Path, study: Load) -> None:
    context = lay(tmp_path, study(GPU_STUDY.replace("[h200-x2]", "[h200-x1]")))
    (found,) = [f.sentence for f in context.findings if f.kind == "own_cost"]
    assert found == (
        "h200-x1, matched: on one rank, where nothing is communicated, a step takes this many times as long as under "
        "`ddp`: `fsdp2-reshard` 1.25x (1.25 to 1.25 over 3 paired runs, one machine); "
        "`zero-3` 2.50x (2.50 to 2.50 over 3 paired runs, one machine)."
    )


def test_a_known_name_means_the_known_config(study: Load) -> None:
    with pytest.raises(SpecError, match=r"configs\[0\]\.name: 'fsdp2-reshard' is a known config and cannot name a va"):
        study("platforms: [h200-x2]\nconfigs: [{name: fsdp2-reshard, base: zero-3}]\n")


def test_a_workload_without_results_is_named(tmp_path: Path, study: Load) -> None:
    large = "{name: zero-3-mb8, base: zero-3, override: {data: {micro_batch: 8}}}"
    matrix = study(GPU_STUDY.replace("zero-3]", f"zero-3, {large}]"))
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    write_record(tmp_path, make_record(run_of(matrix, "zero-3-mb8"), outcome="cuda_oom"))
    text = write_report(matrix, tmp_path).read_text()
    assert "- **h200-x2, matched, micro-batch 8**: Nothing finished. Failed: `zero-3-mb8` (cuda_oom).\n" in text


def test_pairs_and_not_medians_choose_the_next(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("zero-3]", "zero-3, zero-2]"))
    # A slow block takes the median of fsdp2-reshard below zero-3's, though in the pair it is nearer to ddp.
    speeds = {"ddp": {1: 1000.0}, "fsdp2-reshard": {1: 900.0, 3: 50.0}}
    speeds |= {steady: {1: 500.0, 2: 500.0} for steady in ("zero-3", "zero-2")}
    for config, found in speeds.items():
        for repeat, value in found.items():
            write_record(tmp_path, make_record(run_of(matrix, config, repeat), tokens_per_s=value))
    (choice,) = build(matrix, tmp_path).choices
    assert choice.behind.config == "fsdp2-reshard"
    assert choice.behind.ratio.value == pytest.approx(10 / 9)


def test_an_unrun_config_is_not_drawn(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[h200-x2]", "[h200-x2, h200-x2-24gb]"))
    for config, peak in {"ddp": 30_000_000_000, "zero-3": 42_000_000_000, "fsdp2-reshard": 20_000_000_000}.items():
        write_record(tmp_path, make_record(run_of(matrix, config, platform="h200-x2"), peak_bytes=peak))
    write_record(tmp_path, make_record(run_of(matrix, "fsdp2-reshard", platform="h200-x2-24gb")))
    write_record(tmp_path, make_record(run_of(matrix, "zero-3", platform="h200-x2-24gb"), outcome="cuda_oom"))
    (line,) = build(matrix, tmp_path).survival
    assert {(p.config, p.alive) for p in line.points} == {("fsdp2-reshard", True), ("zero-3", False)}


def test_a_dead_run_held_what_its_allocator_said(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    said = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 24.00 "
        "GiB of which 665.96 MiB is free. Of the allocated memory 23.25 GiB is allocated by PyTorch, and 102.04 MiB is "
        "reserved by PyTorch but unallocated."
    )
    write_record(tmp_path, make_record(run_of(matrix, "fsdp2-reshard")))
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), outcome="cuda_oom", evidence=said))
    text = write_report(matrix, tmp_path).read_text()
    assert "| zero-3 | - | - | over 24.96 |" in text
    assert "| h200-x2 | zero-3 | matched | r1 a1 try 1 | over 24.96 | cuda_oom |" in text


def test_steps_before_death_are_called_begun(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp"), peak_bytes=10_000_000_000))
    for config, peak in {"fsdp2-reshard": 30_000_000_000, "zero-3": 40_000_000_000}.items():
        write_record(tmp_path, make_record(run_of(matrix, config), outcome="cuda_oom", remedy="expandable-segments"))
        write_record(tmp_path, make_record(run_of(matrix, config, 2), peak_bytes=peak, remedy="expandable-segments"))
    (line,) = [f.sentence for f in build(matrix, tmp_path).findings if f.kind == "survival"]
    assert "steps begun before death: `fsdp2-reshard` (30.0 GB) after 4, `zero-3` (40.0 GB) after 4" in line
