"""When a difference is one, and what a sentence may conclude from it."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import Report, build, texts, write_report
from dtbench.report.findings import ENOUGH
from dtbench.study.matrix import Matrix, load_matrix
from msgspec import structs

from harness.contract.measured import Trial
from harness.measure.ledger import predicted_peak_bytes
from tests.dtbench.conftest import GPU_STUDY, ROOT, make_record, run_of, write_record
from tests.dtbench.results.test_machines import on

Load = Callable[[str], Matrix]
PIECES = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 40.00 GiB "
    "of which 0.97 GiB is free. Of the allocated memory 37.49 GiB is allocated by PyTorch, and 1.54 GiB is reserved by "
    "PyTorch but unallocated."
)


def said(context: Report, kind: str) -> list[str]:
    return [finding.sentence for finding in context.findings if finding.kind == kind]


def test_steady_cells_rank_beside_unsteady_ones(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("ddp, ", "zero-1, zero-2, ddp, "))
    # Two cells that move by 20%, and two that all three pairs set 3% apart.
    sway = {1: 0.9, 2: 1.0, 3: 1.1}
    for run in matrix.runs:
        base = {"ddp": 1030.0, "fsdp2-reshard": 1000.0}.get(run.identity.config)
        speed = base if base else 500.0 * sway[run.identity.repeat]
        write_record(tmp_path, make_record(run, tokens_per_s=speed))
    (choice,) = build(matrix, tmp_path).choices
    assert choice.ties == ()
    assert (choice.behind.config, round(choice.behind.ratio.value, 2)) == ("fsdp2-reshard", 1.03)


def test_noise_makes_no_factor(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[matched]", "[defaults, matched]").replace("repeats: 3", "repeats: 2"))
    speeds = {("fsdp2-reshard", "defaults"): 2510.0, ("fsdp2-reshard", "matched"): 2500.0}
    for run in matrix.runs:
        speed = speeds.get((run.identity.config, run.identity.arm), 1000.0)
        write_record(tmp_path, make_record(run, tokens_per_s=speed * (1 + 0.02 * (run.identity.repeat - 1))))
    (sentence,) = said(build(matrix, tmp_path), "arms")
    assert sentence.endswith("make no difference beyond the noise of repeats (a factor of 1.00 to 1.00).")


def test_a_single_pair_is_named(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for config, speed in {"fsdp2-reshard": 900.0, "zero-3": 300.0}.items():
        write_record(tmp_path, make_record(run_of(matrix, config), tokens_per_s=speed))
    (sentence,) = said(build(matrix, tmp_path), "head_to_head")
    assert "`fsdp2-reshard` trains 3.00x as fast as `zero-3` (one pair of runs)" in sentence


def test_offload_is_priced_by_paired_runs(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("ddp, ", "zero-3-offload, "))
    tokens = run_of(matrix, "zero-3").tokens_per_step
    # Steps of 1 s and 4 s on machine a; a slow machine b ran the plain config alone.
    runs = {("zero-3", 1): ("a", 1.0), ("zero-3", 2): ("b", 3.0), ("zero-3-offload", 1): ("a", 4.0)}
    for (config, repeat), (machine, step_s) in runs.items():
        peak = 20_000_000_000 if config == "zero-3" else 10_000_000_000
        record = make_record(run_of(matrix, config, repeat), tokens_per_s=tokens / step_s, peak_bytes=peak)
        write_record(tmp_path, on(record, machine))
    (sentence,) = said(build(matrix, tmp_path), "offload")
    assert sentence.endswith("4.0x slower (one pair of runs), 300 ms a step for each GB given back.")


def test_overridden_cells_are_marked_and_not_compared(tmp_path: Path, study: Load) -> None:
    settings = "{engine: {leaf_blocks: true}, environment: {NCCL_ALGO: Ring}}"
    matrix = study(
        GPU_STUDY.replace("[h200-x2]", "[h200-x2, h200-x2-thin]")
        + f"overrides: [{{config: zero-3, platform: h200-x2-thin, set: {settings}}}]\n"
    )
    for run in matrix.runs:
        write_record(tmp_path, make_record(run, tokens_per_s=1000.0))
    text = write_report(matrix, tmp_path).read_text()
    assert "| zero-3 (leaf blocks, NCCL_ALGO=Ring) | 1000 |" in text
    (pipe,) = [f for f in build(matrix, tmp_path).findings if f.kind == "pipe"]
    assert "zero-3" not in pipe.numbers
    assert "ddp" in pipe.numbers
    (row,) = [line for line in (tmp_path / "cells.csv").read_text().splitlines() if "h200-x2-thin,zero-3" in line]
    assert '"leaf blocks, NCCL_ALGO=Ring"' in row


def test_fragmentation_is_not_called_a_misfit(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), outcome="cuda_oom", evidence=PIECES))
    (sentence,) = said(build(matrix, tmp_path), "does_not_fit")
    assert sentence == (
        "h200-x2, matched: `zero-3` ran out of memory because the free memory was fragmented; "
        "expandable segments were not tried and may let it fit."
    )


def test_memory_is_blamed_only_if_all_agree(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for repeat, outcome in ((1, "cuda_oom"), (2, "cuda_oom"), (3, "python_exception")):
        write_record(tmp_path, make_record(run_of(matrix, "zero-3", repeat), outcome=outcome))
    assert said(build(matrix, tmp_path), "does_not_fit") == []


def test_the_fastest_config_names_its_failures(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp", 1), tokens_per_s=2000.0))
    write_record(tmp_path, make_record(run_of(matrix, "zero-3", 1), tokens_per_s=1000.0))
    for repeat in (2, 3):
        write_record(tmp_path, make_record(run_of(matrix, "ddp", repeat), outcome="cuda_oom"))
    text = write_report(matrix, tmp_path).read_text()
    assert (
        "`ddp` is fastest, in a single run: 2000 tok/s, peak 20.00 GB (2x cuda_oom in its other runs). "
        "It is 2.00x as fast as the next one, `zero-3` (one pair of runs)."
    ) in text


@pytest.mark.parametrize(("remedied", "dagger"), [((1, 2), True), ((1,), False)])
def test_the_dagger_marks_cells_needing_a_remedy(
    tmp_path: Path, study: Load, remedied: tuple[int, ...], dagger: bool
) -> None:
    matrix = study(GPU_STUDY)
    for repeat in (1, 2):
        remedy = "expandable-segments" if repeat in remedied else None
        write_record(tmp_path, make_record(run_of(matrix, "zero-3", repeat), remedy=remedy))
    rows = {row.config: row.dagger for row in build(matrix, tmp_path).platforms[0].tables[0].rows}
    assert rows["zero-3"] is dagger


def test_deaths_below_the_survival_line_are_named(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp"), peak_bytes=40_000_000_000))
    cured = make_record(run_of(matrix, "zero-3"), peak_bytes=38_000_000_000, remedy="expandable-segments")
    write_record(tmp_path, cured)
    (sentence,) = said(build(matrix, tmp_path), "survival")
    assert sentence == ("h200-x2, matched: `ddp` ran at 40.0 GB; `zero-3` needed no more, yet died without a remedy.")


def test_equal_numerics_bound_the_share_of_precision(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[matched]", "[defaults, matched]"))
    peaks = {("fsdp2-reshard", "defaults"): 20, ("fsdp2-reshard", "matched"): 30}
    for run in matrix.runs:
        peak = peaks.get((run.identity.config, run.identity.arm), 38)
        write_record(tmp_path, make_record(run, peak_bytes=peak * 10**9))
    sentences = said(build(matrix, tmp_path), "precision")
    assert len(sentences) == 1
    assert "precision explains part of the memory difference" in sentences[0]
    assert "measured were 18.0 GB less (8.0 GB at equal numerics)." in sentences[0]


def test_a_difference_at_equal_numerics_is_not_precision(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[matched]", "[defaults, matched]"))
    for run in matrix.runs:
        write_record(
            tmp_path, make_record(run, peak_bytes=(36 if run.identity.config == "fsdp2-reshard" else 38) * 10**9)
        )
    assert said(build(matrix, tmp_path), "precision") == []


def test_a_title_is_escaped(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY + 'title: "One | <script>alert(1)</script>"\n')
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    first = write_report(matrix, tmp_path).read_text().splitlines()[0]
    assert first.startswith("# One ")
    assert "<script>" not in first


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (8 / 36, "compile incomplete: torch compiled 22% of the decoder blocks of `zero-3`"),
        (None, "the record of `zero-3` is too old to say whether torch compiled all of its decoder blocks"),
        (1.0, None),
    ],
)
def test_an_incomplete_compile_is_found(tmp_path: Path, study: Load, share: float | None, words: str | None) -> None:
    matrix = study("platforms: [h200-x2]\nconfigs: [zero-3]\narms: [tuned]\nrepeats: 1\n")
    (run,) = matrix.runs
    record = make_record(run)
    assert record.measured
    trial = Trial(settings={"compile": True}, outcome="ok", tokens_per_s=1000.0, kept=True)
    measured = structs.replace(record.measured, compiled_share=share, search=[trial])
    write_record(tmp_path, structs.replace(record, measured=measured))
    found = said(build(matrix, tmp_path), "compile_incomplete")
    assert [words in text for text in found if words] == ([True] if words else [])
    assert bool(found) is bool(words)


@pytest.fixture(scope="module")
def context() -> Report:
    return build(load_matrix("published", ROOT), ROOT / "results/published")


def test_findings_that_change_a_decision_come_first(context: Report) -> None:
    weights = [min(finding.weight, ENOUGH) for finding in context.findings]
    assert all(after <= before + 0.01 for before, after in itertools.pairwise(weights))
    # The order of the two stages turns from one platform to the other.
    assert context.findings[0].kind == "stage_order"


def test_findings_beyond_the_tenth_are_folded(context: Report) -> None:
    written = texts(context)
    more = len(context.findings) - 10
    for name, mark in (("report.md", "- "), ("report.html", "<li>")):
        head, _, folded = written[name].partition(f"<details><summary>{more} more findings</summary>")
        assert head.partition("Findings")[2].count(f"\n{mark}") == 10, name
        assert folded.partition("</details>")[0].count(f"\n{mark}") == more, name


def test_noisy_platforms_are_named(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for repeat, speed in enumerate((900.0, 1000.0, 1100.0), start=1):
        for config in ("ddp", "zero-3"):
            write_record(tmp_path, make_record(run_of(matrix, config, repeat), tokens_per_s=speed))
    (sentence,) = said(build(matrix, tmp_path), "noise")
    assert sentence.startswith("h200-x2: repeats of one cell differ by 10%.")


def test_peaks_are_held_against_the_ledger(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for config in ("ddp", "zero-3"):
        run = run_of(matrix, config)
        predicted = predicted_peak_bytes(run)
        assert predicted is not None
        peak = predicted if config == "ddp" else predicted * 2
        write_record(tmp_path, make_record(run, peak_bytes=peak))
    (sentence,) = said(build(matrix, tmp_path), "prediction")
    assert "the peaks of 2 configs within -50% to +0%. Its largest error is that of `zero-3`" in sentence
