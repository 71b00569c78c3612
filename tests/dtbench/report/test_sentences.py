"""What a report says at the edges: ties, lower bounds, other machines, other workloads beside."""

from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import Report, build, write_report
from dtbench.study.matrix import Matrix
from msgspec import structs

from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record
from tests.dtbench.results.test_machines import on

Load = Callable[[str], Matrix]
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 24.00 GiB "
    "of which 665.96 MiB is free. Of the allocated memory 22.25 GiB is allocated by PyTorch, and 102 MiB is reserved "
    "by PyTorch but unallocated."
)
HELD = "23.89"


def lay(folder: Path, matrix: Matrix, speeds: dict[str, float], peaks: dict[str, int] | None = None) -> Report:
    for run in matrix.runs:
        if speed := speeds.get(run.identity.config):
            peak = (peaks or {}).get(run.identity.config, 20_000_000_000)
            write_record(folder, make_record(run, tokens_per_s=speed, peak_bytes=peak))
    return build(matrix, folder)


def said(context: Report, kind: str) -> list[str]:
    return [finding.sentence for finding in context.findings if finding.kind == kind]


def test_memory_need_comes_from_the_same_workload(tmp_path: Path, study: Load) -> None:
    matrix = study(
        GPU_STUDY.replace("[h200-x2]", "[h200-x2, h200-x2-24gb]")
        + "overrides: [{config: zero-3, platform: h200-x2, set: {data: {micro_batch: 8}}}]\n"
    )
    write_record(tmp_path, make_record(run_of(matrix, "zero-3", platform="h200-x2"), peak_bytes=99_000_000_000))
    died = run_of(matrix, "zero-3", platform="h200-x2-24gb")
    write_record(tmp_path, make_record(died, outcome="cuda_oom", evidence=OOM))
    (death,) = build(matrix, tmp_path).deaths
    assert (f"{death.needs_gb:.2f}", death.at_least) == (HELD, True)


def test_a_measured_need_is_no_lower_bound(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp"), loss=(8.0, 7.9)))
    for repeat in (1, 2, 3):
        write_record(tmp_path, make_record(run_of(matrix, "zero-3", repeat), loss=(6.0, 5.0)))
    rows = {row.config: row for row in build(matrix, tmp_path).platforms[0].tables[0].rows}
    assert (rows["zero-3"].outcome, rows["zero-3"].peak_at_least) == ("parity_mismatch", False)


def test_the_survival_line_may_lack_an_upper_end(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), outcome="cuda_oom", evidence=OOM))
    (line,) = said(build(matrix, tmp_path), "survival")
    assert line == (
        "h200-x2, matched: the survival line lies above 20.0 GB: `ddp` ran at 20.0 GB, "
        "`zero-3` held 23.9 GB and asked for more when it died without a remedy."
    )


def test_a_cured_death_is_drawn_as_death(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    write_record(tmp_path, make_record(run_of(matrix, "fsdp2-reshard"), outcome="cuda_oom", evidence=OOM))
    cured = make_record(run_of(matrix, "zero-3"), peak_bytes=15_000_000_000, remedy="expandable-segments")
    tries = (structs.replace(cured.tries[0], last_step=None), *cured.tries[1:])
    write_record(tmp_path, structs.replace(cured, tries=tries))
    (line,) = build(matrix, tmp_path).survival
    assert {p.config: p.alive for p in line.points} == {"ddp": True, "fsdp2-reshard": False, "zero-3": False}


def test_advice_names_a_tie(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    peaks = {"fsdp2-reshard": 10_000_000_000}
    assert lay(tmp_path, matrix, {"ddp": 1000.0, "fsdp2-reshard": 1000.0}, peaks).choices[0].advice[-1] == (
        "h200-x2, matched: when memory is short, use `fsdp2-reshard`: 10.00 GB, as fast as `ddp`."
    )


def test_advice_ignores_medians_of_different_machines(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, on(make_record(run_of(matrix, "ddp"), tokens_per_s=1300.0), "a"))
    light = make_record(run_of(matrix, "fsdp2-reshard"), tokens_per_s=1000.0, peak_bytes=10_000_000_000)
    write_record(tmp_path, on(light, "b"))
    (choice,) = build(matrix, tmp_path).choices
    assert (choice.best, choice.finished) == (None, ("ddp", "fsdp2-reshard"))
    assert choice.sentence.startswith("No ranking of `ddp` and `fsdp2-reshard`: no two of them ran on one machine")
    assert choice.advice[0].startswith("h200-x2, matched: no recommendation.")


def test_other_models_settings_are_not_compared(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY + "overrides: [{config: zero-3, set: {model: {activation_checkpointing: true}}}]\n")
    context = lay(tmp_path, matrix, {"fsdp2-reshard": 800.0, "zero-3": 400.0})
    assert said(context, "head_to_head") == []
    rows = {row.config: row.peculiar for row in context.platforms[0].tables[0].rows}
    assert rows == {"fsdp2-reshard": "", "zero-3": "activation checkpointing"}


@pytest.mark.parametrize(
    ("offloaded", "words"),
    [
        (400.0, "it costs no speed beyond the noise of repeats (1.00x, 1.00 to 1.00 over 3 paired runs, one machine)."),
        (800.0, "it then trains 2.0x faster (2.00 to 2.00 over 3 paired runs, one machine)."),
        (200.0, "it then trains 2.0x slower (2.00 to 2.00 over 3 paired runs, one machine), "),
    ],
)
def test_offload_may_cost_nothing(tmp_path: Path, study: Load, offloaded: float, words: str) -> None:
    matrix = study(GPU_STUDY.replace("ddp, ", "zero-3-offload, "))
    peaks = {"zero-3-offload": 10_000_000_000}
    (found,) = said(lay(tmp_path, matrix, {"zero-3": 400.0, "zero-3-offload": offloaded}, peaks), "offload")
    assert words in found


def test_a_tie_does_not_change_the_order(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[h200-x2]", "[h200-x2, h200-x2-thin]").replace("ddp, ", "zero-2, "))
    for run in matrix.runs:
        slow = run.identity.config == "zero-3" and run.platform.name == "h200-x2"
        write_record(tmp_path, make_record(run, tokens_per_s=400.0 if slow else 900.0))
    (found,) = said(build(matrix, tmp_path), "stage_order")
    assert found.startswith("matched: on h200-x2 `zero-2` is 2.25x as fast as `zero-3`")
    assert "on h200-x2-thin `zero-3` and `zero-2` are equally fast within the noise of repeats" in found


def test_compute_share_is_at_most_the_step(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    run = run_of(matrix, "zero-3")
    profile = {
        "steps": 1,
        "window_s": 0.4,
        "shares": {"compute": 0.9, "comm_exposed": 0.05, "copy_exposed": 0.0, "idle": 0.05},
    }
    write_record(tmp_path, make_record(run, tokens_per_s=run.tokens_per_step / 0.3, profile=profile))
    (row,) = build(matrix, tmp_path).time
    assert (row.timed_compute, row.timed_idle) == (100.0, 0.0)


def test_a_column_names_its_workload(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY + "data: {micro_batch: 8}\nbeside: [published]\n")
    lay(tmp_path / "study", matrix, {"fsdp2-reshard": 800.0, "zero-3": 400.0})
    (tmp_path / "published").symlink_to(Path(__file__).resolve().parents[3] / "results/published")
    text = write_report(matrix, tmp_path / "study").read_text()
    assert "| comparison | study: h200-x2, matched, micro-batch 8 |" in text
    assert " published: a100-40gb-x4, defaults, micro-batch 1 |" in text


def test_stale_figures_are_deleted(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    died = make_record(run_of(matrix, "zero-3"), outcome="cuda_oom", evidence=OOM)
    path = write_record(tmp_path, died)
    write_report(matrix, tmp_path)
    assert (tmp_path / "figures/survival.svg").is_file()
    path.unlink()
    write_report(matrix, tmp_path)
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == [
        "decision-1.svg",
        "memory.svg",
        "throughput.svg",
    ]
