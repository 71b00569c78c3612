"""Findings about how far the numbers carry: hosts that keep GPUs waiting, noise, and memory against its prediction."""

import math
import statistics
from collections.abc import Iterable

from dtbench.report.sentences import ANOTHER_TRAINING, Finding, code
from dtbench.results.comparison import Results
from dtbench.results.numbers import host_gap
from harness.contract.record import Record
from harness.contract.units import GB
from harness.measure.ledger import predicted_peak_bytes

NOISY = 0.05
"""Repeats of one cell that differ by more than this hide differences that people act on."""


def host_bound(results: Results) -> Iterable[Finding]:
    """Configs whose steps wait for the host, so that another host gives another speed."""
    for platform, arm in results.places():
        gaps = {}
        for config in results.configs():
            cell = results.get(platform, config, arm)
            gap = cell.median(host_gap) if cell is not None and results.host_bound(cell) else None
            if gap is not None:
                gaps[config] = gap
        if gaps:
            told = ", ".join(f"{code(config)} {gap * 100:.0f}%" for config, gap in gaps.items())
            yield Finding(
                kind="host_bound",
                sentence=f"{platform}, {arm}: these configs wait for the host, so a faster host makes them faster. "
                f"Their steps take this much longer than the GPU is busy: {told}.",
                weight=math.log(1 + statistics.median(gaps.values())),
                numbers={"platform": platform, "arm": arm, **gaps},
            )


def noise(results: Results) -> Iterable[Finding]:
    """Platforms whose repeats differ so much that they hide differences that people act on."""
    for platform in results.platforms:
        floor = results.floor(platform)
        if floor > NOISY:
            yield Finding(
                kind="noise",
                sentence=f"{platform}: repeats of one cell differ by {floor * 100:.0f}%. Runs in pairs on one "
                "machine cancel most of it; a smaller difference in a single pair decides nothing.",
                weight=math.log(1 + floor),
                numbers={"platform": platform, "floor": floor},
            )


def prediction(results: Results) -> Iterable[Finding]:
    """Measured peaks against those that the memory ledger predicts, which `dtbench fit` relies on."""
    for platform, arm in results.places():
        errors: dict[str, tuple[float, float, float]] = {}
        for config in results.configs():
            cell = results.get(platform, config, arm)
            spec, peak = (cell.cell.spec, cell.peak()) if cell is not None else (None, None)
            measured = cell is not None and any(run.newest and not run.newest.record.source for run in cell.finished)
            predicted = predicted_peak_bytes(spec) if spec and spec.platform.device == "cuda" and measured else None
            if peak and predicted:
                errors[config] = (predicted / peak - 1, predicted / GB, peak / GB)
        if len(errors) > 1:
            worst = max(errors, key=lambda config: abs(errors[config][0]))
            values = [error for error, _, _ in errors.values()]
            error, predicted_gb, peak_gb = errors[worst]
            yield Finding(
                kind="prediction",
                sentence=f"{platform}, {arm}: the memory ledger predicts the peaks of {len(errors)} configs within "
                f"{min(values) * 100:+.0f}% to {max(values) * 100:+.0f}%. Its largest error is that of {code(worst)}: "
                f"{predicted_gb:.1f} GB predicted, {peak_gb:.1f} GB measured.",
                weight=abs(math.log(1 + error)),
                numbers={"platform": platform, "arm": arm, "low": min(values), "high": max(values)},
            )


def compile_incomplete(results: Results) -> Iterable[Finding]:
    """Cells that are compiled by name only: torch gave up on some blocks, or nothing says that it did not."""
    for (platform, config, arm), cell in results.cells.items():
        records = [run.newest.record for run in cell.finished if run.newest]
        compiled = [r.measured for r in records if r.measured and _compiles(r)]
        shares = [m.compiled_share for m in compiled if m.compiled_share is not None]
        if shares and min(shares) < 1:
            text = (
                f"compile incomplete: torch compiled {min(shares) * 100:.0f}% of the decoder blocks of {code(config)} "
                "and ran the rest as plain Python"
            )
        elif compiled and not shares and cell.cell.arm == "tuned":
            text = f"the record of {code(config)} is too old to say whether torch compiled all of its decoder blocks"
        else:
            continue
        numbers = {"platform": platform, "arm": arm, "config": config, "share": min(shares, default=None)}
        yield Finding(
            kind="compile_incomplete",
            sentence=f"{platform}, {arm}: {text}.",
            weight=ANOTHER_TRAINING,
            numbers=numbers,
        )


def _compiles(record: Record) -> bool:
    """Whether the run compiled its blocks, as given or as its trials chose."""
    search = (record.measured.search if record.measured else None) or ()
    chosen = {name: value for trial in search if trial.kept for name, value in trial.settings.items()}
    settings = record.spec.engine.settings | chosen
    return bool(settings.get("compile") or settings.get("deepcompile"))
