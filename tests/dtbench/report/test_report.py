"""The report on studies in every state: empty, half done, failing."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.report.document import build, write_report
from dtbench.results.runs import load_runs
from dtbench.study.cell import at
from dtbench.study.matrix import Matrix
from msgspec import structs

from harness.contract.errors import SpecError
from tests.dtbench.conftest import GPU_STUDY, ROOT, make_record, run_of, write_record

Load = Callable[[str], Matrix]


def test_an_empty_study_lists_every_config_as_missing(tmp_path: Path, study: Load) -> None:
    text = write_report(study(GPU_STUDY), tmp_path).read_text()
    assert "Nothing has finished yet: 9 of 9 runs are missing" in text
    assert "Not run yet: `ddp`, `fsdp2-reshard`, `zero-3`." in text
    assert "Deaths" not in text


def test_a_half_done_study_shows_both(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp", 1), tokens_per_s=1234.0))
    text = write_report(matrix, tmp_path).read_text()
    assert "| ddp | 1234 |" in text
    assert "| 1/3 | ok, 2x missing |" in text
    assert text.index("8 of 9 runs are missing") < text.index("**h200-x2, matched**")


def test_ties_and_differences_are_named(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    speeds = {"ddp": 1000.0, "fsdp2-reshard": 1010.0, "zero-3": 500.0}
    noise = {1: 0.98, 2: 1.0, 3: 1.03}
    for run in matrix.runs:
        wobble = (
            noise[run.identity.repeat] if run.identity.config != "fsdp2-reshard" else noise[4 - run.identity.repeat]
        )
        write_record(tmp_path, make_record(run, tokens_per_s=speeds[run.identity.config] * wobble))
    context = build(matrix, tmp_path)
    (choice,) = context.choices
    assert (choice.best, choice.ties) == ("fsdp2-reshard", ("ddp",))
    assert choice.behind.config == "zero-3"
    text = write_report(matrix, tmp_path).read_text()
    assert "Equally fast within the noise of repeats: `ddp`." in text
    assert "`fsdp2-reshard` trains 2.02x as fast as `zero-3` (1.92 to 2.12 over 3 paired runs, one machine)" in text


def test_another_micro_batch_is_another_workload(tmp_path: Path, study: Load) -> None:
    large = "{name: zero-3-mb8, base: zero-3, override: {data: {micro_batch: 8}}}"
    matrix = study(GPU_STUDY.replace("zero-3]", f"zero-3, {large}]"))
    speeds = {"ddp": 1000.0, "fsdp2-reshard": 800.0, "zero-3-mb8": 3000.0}
    for name, found in speeds.items():
        write_record(tmp_path, make_record(run_of(matrix, name), tokens_per_s=found))
    text = write_report(matrix, tmp_path).read_text()
    assert (
        "- **h200-x2, matched, micro-batch 1**: `ddp` is fastest, in a single run: 1000 tok/s, peak 20.00 GB. "
        "It is 25% faster than the next one, `fsdp2-reshard` (one pair of runs). Not run yet: `zero-3`.\n"
    ) in text
    assert "- **h200-x2, matched, micro-batch 8**: `zero-3-mb8` is the only one that finished: 3000 tok/s" in text


@pytest.mark.parametrize(
    ("wobble", "words"),
    [
        (0.01, "precision and optimizer kernels make a factor of 1.20."),
        (0.30, "make no difference beyond the noise of repeats (a factor of 0.65 to 2.23)."),
    ],
)
def test_a_factor_of_precision_must_exceed_noise(tmp_path: Path, study: Load, wobble: float, words: str) -> None:
    matrix = study(GPU_STUDY.replace("[matched]", "[matched, defaults]"))
    for run in matrix.runs:
        base = {"fsdp2-reshard": 2400.0 if run.identity.arm == "defaults" else 2000.0}.get(run.identity.config, 1000.0)
        sway = (run.identity.repeat - 2) * wobble if run.identity.config == "fsdp2-reshard" else 0.0
        write_record(tmp_path, make_record(run, tokens_per_s=base * (1 + sway)))
    assert words in write_report(matrix, tmp_path).read_text()


def test_a_dead_config_needs_its_peak_elsewhere(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[h200-x2]", "[h200-x2, h200-x2-40gb]"))
    peaks = {"fsdp2-reshard": 38_000_000_000, "zero-3": 42_000_000_000}
    for config, peak in peaks.items():
        write_record(tmp_path, make_record(run_of(matrix, config, platform="h200-x2"), peak_bytes=peak))
    lived, died = (run_of(matrix, config, platform="h200-x2-40gb") for config in peaks)
    write_record(tmp_path, make_record(lived, peak_bytes=38_000_000_000))
    write_record(tmp_path, make_record(died, outcome="cuda_oom", peak_bytes=37_000_000_000))
    text = write_report(matrix, tmp_path).read_text()
    assert "h200-x2-40gb, matched: the survival line lies between 38.0 and 42.0 GB" in text


def test_the_price_of_resharding_has_one_sign(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY.replace("[ddp, ", "[fsdp2-noreshard, "))
    write_record(tmp_path, make_record(run_of(matrix, "fsdp2-reshard"), tokens_per_s=860.0))
    write_record(tmp_path, make_record(run_of(matrix, "fsdp2-noreshard"), peak_bytes=21_000_000_000))
    text = write_report(matrix, tmp_path).read_text()
    assert "This saves 1.00 GB a rank; it costs 14% of the speed: 0.86x (one pair of runs)." in text


def test_repeats_are_mentioned_only_after_a_run(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    assert "Each cell ran once" not in write_report(matrix, tmp_path).read_text()
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    assert (
        "Each cell ran once, so it is unknown how much repeats would differ."
        in write_report(matrix, tmp_path).read_text()
    )


def test_a_death_shows_its_evidence_and_place(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), outcome="host_oom", evidence="Killed process 7"))
    text = write_report(matrix, tmp_path).read_text()
    assert "rank-1.log:7 Killed process 7" in text
    assert "| rank 1 |" in text
    assert "host_oom: Ask for more host memory" in text


def test_a_guess_is_called_a_guess_everywhere(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp")))
    sure = make_record(run_of(matrix, "zero-3"), outcome="host_oom")
    guess = dataclasses.replace(sure.diagnosis, confidence="low")
    tries = (structs.replace(sure.tries[0], diagnosis=guess),)
    write_record(tmp_path, structs.replace(sure, diagnosis=guess, tries=tries))
    text = write_report(matrix, tmp_path).read_text()
    assert "Failed: `zero-3` (host_oom, a guess)." in text
    assert "| host_oom, a guess |" in text
    write_record(tmp_path, sure)
    assert "a guess" not in write_report(matrix, tmp_path).read_text()


def test_a_remedied_cell_shows_dagger_and_first_try(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), remedy="expandable-segments"))
    text = write_report(matrix, tmp_path).read_text()
    assert "| zero-3 \u2020 |" in text
    assert "\u2020 It ran only in a second try, with the remedy expandable-segments." in text
    assert "cuda_oom_fragmentation, cured by expandable-segments" in text


def test_the_survival_line_separates_alive_and_dead(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "fsdp2-reshard"), peak_bytes=14_000_000_000))
    write_record(
        tmp_path, make_record(run_of(matrix, "zero-3"), peak_bytes=18_000_000_000, remedy="expandable-segments")
    )
    (line,) = build(matrix, tmp_path).survival
    assert (line.survivor_bytes, line.casualty_bytes) == (14_000_000_000, 18_000_000_000)


def test_a_torn_record_gets_a_row(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    write_record(tmp_path, make_record(run_of(matrix, "ddp"))).write_text('{"outcome": "ok"')
    text = write_report(matrix, tmp_path).read_text()
    assert "not JSON" in text
    assert str(tmp_path) not in text


def test_a_record_of_another_run_is_refused(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    mine, other = run_of(matrix, "ddp"), run_of(matrix, "zero-3")
    path = write_record(tmp_path, make_record(mine))
    path.write_text(write_record(tmp_path / "elsewhere", make_record(other)).read_text())
    runs = {run.spec.run_hash(): run for _, found in load_runs(matrix, tmp_path) for run in found}
    assert runs[mine.run_hash()].outcome == "unknown"
    assert "holds the record of another run" in (runs[mine.run_hash()].problem or "")


def test_the_newest_attempt_counts(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    run = run_of(matrix, "ddp")
    write_record(tmp_path, make_record(run, outcome="preemption"))
    write_record(tmp_path, make_record(at(run, attempt=2), tokens_per_s=77.0))
    text = write_report(matrix, tmp_path).read_text()
    assert "| ddp | 77.0 |" in text
    assert "r1 a1 try 1" in text


def test_an_early_report_uses_todays_rules(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    record = make_record(run_of(matrix, "zero-3"), outcome="cuda_oom")
    record = structs.replace(record, tries=(structs.replace(record.tries[0], launcher_exit_code=1),))
    died = write_record(tmp_path, record).parent / "try-1"
    died.mkdir()
    (died / "rank-0.log").write_text("ModuleNotFoundError: No module named 'flash_attn'\n")
    context = build(matrix, tmp_path)
    assert [death.outcome for death in context.deaths] == ["import_error"]
    assert not (tmp_path / "diagnoses.json").exists()


def test_an_unknown_price_gives_no_cost(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for run in matrix.runs:
        write_record(tmp_path, make_record(run, tokens_per_s=1000.0))
    text = write_report(matrix, tmp_path).read_text()
    assert "price unknown, so no cost is given" in text
    assert not re.search(r"\$\d", text)


def test_profiled_shares_become_the_time_table(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    shares = {"compute": 0.5, "comm_exposed": 0.3, "copy_exposed": 0.05, "idle": 0.15}
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), profile={"nccl_share": 0.4, "shares": shares}))
    text = write_report(matrix, tmp_path).read_text()
    assert "| h200-x2 | zero-3 | matched | 50.0 | 30.0 | 5.0 | 15.0 | 40.0 | - |" in text
    assert (tmp_path / "figures/time.svg").is_file()


def test_waiting_for_other_ranks_is_told_apart(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    shares = {"compute": 0.5, "comm_exposed": 0.3, "copy_exposed": 0.0, "idle": 0.2}
    profile = {"shares": shares, "comm_total_s": 0.2, "straggler_wait_s": 0.15}
    write_record(tmp_path, make_record(run_of(matrix, "zero-3"), profile=profile))
    (row,) = build(matrix, tmp_path).time
    assert row.waiting_percent == pytest.approx(75)


def test_profiler_overhead_is_not_idle_time(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    run = run_of(matrix, "zero-3")
    # 3 profiled steps of 0.4 s, half of each compute and a tenth communication; timed, a step takes 0.3 s.
    shares = {"compute": 0.5, "comm_exposed": 0.1, "copy_exposed": 0.0, "idle": 0.4}
    profile = {"steps": 3, "window_s": 1.2, "shares": shares}
    write_record(tmp_path, make_record(run, tokens_per_s=run.tokens_per_step / 0.3, profile=profile))
    (row,) = build(matrix, tmp_path).time
    assert (row.profiled_ms, row.timed_ms) == (pytest.approx(400), pytest.approx(300))
    assert (row.timed_compute, row.timed_idle) == (pytest.approx(200 / 3), pytest.approx(20))


def test_a_flag_is_explained_below_its_table(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    record = make_record(run_of(matrix, "ddp"))
    assert record.measured is not None
    measured = structs.replace(record.measured, flags=("unstable",))
    write_record(tmp_path, structs.replace(record, measured=measured))
    text = write_report(matrix, tmp_path).read_text()
    assert "| ok, 2x missing [unstable] |" in text
    assert "\n[unstable]: the slowest timed steps took much longer than the median one.\n" in text


def test_shares_of_repeats_add_up_to_all(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    repeats = [(0.5, 0.3, 0.0, 0.2), (0.2, 0.4, 0.1, 0.3), (0.4, 0.2, 0.1, 0.3)]
    for repeat, parts in enumerate(repeats, start=1):
        shares = dict(zip(("compute", "comm_exposed", "copy_exposed", "idle"), parts, strict=True))
        write_record(tmp_path, make_record(run_of(matrix, "zero-3", repeat), profile={"shares": shares}))
    (row,) = build(matrix, tmp_path).time
    assert sum(getattr(row, name) for name in ("compute", "comm_exposed", "copy_exposed", "idle")) == pytest.approx(100)


def test_kinds_of_kernels_become_a_table_longest_first(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY)
    for config, kinds in (("zero-3", {"matmul": 0.2, "loss": 0.01}), ("fsdp2-reshard", {"optimizer": 0.05})):
        write_record(tmp_path, make_record(run_of(matrix, config), profile={"kernel_kinds_s": kinds}))
    text = write_report(matrix, tmp_path).read_text()
    assert "| platform | config | arm | matmul | optimizer | loss |\n|---|---|---|---:|---:|---:|\n" in text
    assert "| h200-x2 | zero-3 | matched | 200.0 | - | 10.0 |\n" in text
    assert "| h200-x2 | fsdp2-reshard | matched | - | 50.0 | - |\n" in text


def test_another_study_is_shown_beside_this_one(tmp_path: Path, study: Load) -> None:
    matrix = study(GPU_STUDY + "beside: [published]\n")
    mine = tmp_path / "study"
    for config, found in (("fsdp2-reshard", 3000.0), ("zero-3", 1000.0)):
        write_record(mine, make_record(run_of(matrix, config), tokens_per_s=found))
    shutil.copytree(ROOT / "results/published", tmp_path / "published")
    text = write_report(matrix, mine).read_text()
    assert "| comparison | study: h200-x2, matched | published: a100-40gb-x4, defaults | published: l4-x4" in text
    assert re.search(r"\| speed of `fsdp2-reshard` over `zero-3` \| 3\.00 \| 1\.83 \|", text)
    # 27% less, the published figure of its A100 tables.
    assert re.search(r"\| peak memory of `fsdp2-reshard` over `zero-3` \| 1\.00 \| 0\.73 \|", text)


def test_an_unknown_study_beside_is_refused(study: Load) -> None:
    with pytest.raises(SpecError, match=r"beside.*publishd.*published"):
        study(GPU_STUDY + "beside: [publishd]\n")
