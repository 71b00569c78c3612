"""Findings about memory: what precision, offload and the size of the card make of it."""

import itertools
from collections.abc import Iterable

from dtbench.report.sentences import (
    ANOTHER_TRAINING,
    NOT_TO_BE_HAD,
    Finding,
    code,
    costless,
    lean,
    listed,
    peak_gb,
    support,
)
from dtbench.results.comparison import OFFLOADING, ON_DEVICE, Results, comparable
from dtbench.results.deaths import SurvivalLine
from dtbench.results.numbers import step_time_s
from dtbench.results.runs import MISSING, Attempt
from dtbench.results.stats import Ratio
from harness.contract.units import GB
from harness.diagnosis.memory import read_shortage
from harness.measure.ledger import predict
from harness.measure.shapes import shape_of

MS = 1000
SAID_GB = 0.1
"""A difference of memory below this is left unsaid."""


def precision(results: Results) -> Iterable[Finding]:
    """How much of that memory difference the numerics alone account for, by the memory ledger's state."""
    for (platform, arm), (first, second) in itertools.product(results.places(), ON_DEVICE):
        fsdp, zero = results.get(platform, first, arm), results.get(platform, second, arm)
        if fsdp is None or zero is None or fsdp.cell.spec is None or zero.cell.spec is None:
            continue
        if not comparable(fsdp, zero):
            continue
        mine, theirs, shape = predict(fsdp.cell.spec), predict(zero.cell.spec), shape_of(fsdp.cell.spec.model.config)
        light, heavy = fsdp.peak(), zero.peak()
        if mine is None or theirs is None or shape is None or not light or not heavy:
            continue
        expected, measured = (theirs.state - mine.state) / GB, (heavy - light) / GB
        # In so small a model the state vanishes in the rest of the memory.
        if mine.state >= theirs.state or light >= heavy or expected < SAID_GB:
            continue
        ranks = fsdp.cell.spec.platform.world_size
        per_parameter = [ledger.state * ranks / shape.parameters for ledger in (mine, theirs)]
        moments = [cell.cell.spec.numerics.optimizer_state for cell in (fsdp, zero) if cell.cell.spec]
        if moments[0] == moments[1]:
            # The engines then differ in copies that they keep (ZeRO's bf16 parameters), not in what they compute.
            continue
        kept = _difference_at_equal_numerics(results, platform, first, second) if arm == "defaults" else None
        if kept is not None and measured - kept < SAID_GB:
            # At equal numerics the difference is the same, so precision is not its cause.
            continue
        partly = expected < measured if kept is None else kept > SAID_GB
        rest = "" if kept is None else f" ({kept:.1f} GB at equal numerics)"
        yield Finding(
            kind="precision",
            sentence=(
                f"{platform}, {arm}: precision explains {'part of ' if partly else ''}the memory difference. "
                f"{code(first)} keeps {per_parameter[0]:.0f} bytes of state per parameter over all ranks ({moments[0]} "
                f"Adam), {code(second)} keeps {per_parameter[1]:.0f} ({moments[1]} Adam). This alone predicts "
                f"{expected:.1f} GB less{f' on each of {ranks} ranks' if ranks > 1 else ''}; measured were "
                f"{measured:.1f} GB less{rest}. So two different trainings are compared."
            ),
            weight=ANOTHER_TRAINING,
            numbers={
                "platform": platform,
                "arm": arm,
                "state_bytes": per_parameter,
                "expected_gb": expected,
                "measured_gb": measured,
            },
        )


def _difference_at_equal_numerics(results: Results, platform: str, first: str, second: str) -> float | None:
    """GB by which the second config's peak exceeds the first's in the matched arm."""
    fsdp, zero = results.get(platform, first, "matched"), results.get(platform, second, "matched")
    if fsdp is None or zero is None or not comparable(fsdp, zero):
        return None
    light, heavy = peak_gb(fsdp), peak_gb(zero)
    return None if light is None or heavy is None else heavy - light


def offload_exchange(results: Results) -> Iterable[Finding]:
    """What each gigabyte that offload gives back costs in speed."""
    for platform, arm in results.places():
        for config, offloaded in OFFLOADING:
            here, away = results.get(platform, config, arm), results.get(platform, offloaded, arm)
            ratio = results.speed_ratio(here, away)
            if here is None or away is None or ratio is None or here.cell.spec is None:
                continue
            if here.cell.spec.platform.device != "cuda":
                continue
            before, after = peak_gb(here), peak_gb(away)
            longer_s = results.difference(away, here, step_time_s)
            if not before or not after or longer_s is None:
                continue
            spent = ""
            if ratio.value > 1 and not ratio.tie and before > after:
                spent = f", {longer_s / (before - after) * MS:.0f} ms a step for each GB given back"
            yield Finding(
                kind="offload",
                sentence=(
                    f"{platform}, {arm}: offload takes {code(config)} from {before:.2f} to {after:.2f} GB "
                    f"a rank; {_slowdown(ratio)}{spent}."
                ),
                weight=lean(ratio),
                numbers={
                    "platform": platform,
                    "arm": arm,
                    "config": config,
                    "slowdown": ratio.value,
                    "before_gb": before,
                    "after_gb": after,
                },
            )


def _slowdown(ratio: Ratio) -> str:
    if ratio.tie:
        return costless(ratio)
    if ratio.value > 1:
        return f"it then trains {ratio.value:.1f}x slower{support(ratio)}"
    return f"it then trains {1 / ratio.value:.1f}x faster{support(ratio.inverse)}"


def survival(lines: Iterable[SurvivalLine]) -> Iterable[Finding]:
    """The memory interval between what ran and what did not fit, and whether need foretells how soon."""
    for line in lines:
        where = f"{line.platform}, {line.arm}"
        lived = f"{code(line.survivor)} ran at {line.survivor_bytes / GB:.1f} GB"
        if line.casualty_bytes is None:
            text = "what the failed configs would have needed is unknown"
            if line.below:
                text = f"{listed(line.below)} needed no more, yet died without a remedy"
            yield Finding(kind="survival", sentence=f"{where}: {lived}; {text}.", weight=NOT_TO_BE_HAD)
            continue
        low, high = line.survivor_bytes / GB, line.casualty_bytes / GB
        died = f"{code(line.casualty or '')} needs {high:.1f} GB and died without a remedy"
        text = f"the survival line lies between {low:.1f} and {high:.1f} GB: {lived}, {died}"
        if line.at_least:
            died = f"{code(line.casualty or '')} held {high:.1f} GB and asked for more when it died without a remedy"
            text = f"the survival line lies above {low:.1f} GB: {lived}, {died}"
        if len(line.lasted) > 1:
            story = ", ".join(f"{code(config)} ({peak / GB:.1f} GB) after {n}" for config, peak, n in line.lasted)
            lesson = ""
            if line.trend is not None and abs(line.trend) > 0.9:
                lesson = f"; the farther above the line, the {'sooner' if line.trend < 0 else 'later'} the death"
            text += f"; {line.unit} before death: {story}{lesson}"
        yield Finding(
            kind="survival",
            sentence=f"{where}: {text}.",
            weight=NOT_TO_BE_HAD,
            numbers={"platform": line.platform, "low_gb": low, "high_gb": high, "trend": line.trend},
        )


def does_not_fit(results: Results) -> Iterable[Finding]:
    """Cells that ran out of memory in every run that there is."""
    for (platform, config, arm), cell in results.cells.items():
        if not cell.outcomes or not cell.outcomes.keys() <= {"cuda_oom", "cuda_oom_fragmentation", MISSING}:
            continue
        ended = [run.newest for run in cell.runs if run.newest]
        sentences = [one.diagnosis.sentence for one in ended]
        if not ended:
            continue
        verdict = "ran out of memory"
        if all(_might_fit(one) for one in ended):
            verdict += " because the free memory was fragmented; expandable segments were not tried and may let it fit"
        yield Finding(
            kind="does_not_fit",
            sentence=f"{platform}, {arm}: {code(config)} {verdict}.",
            detail=sentences[0] if sentences else "",
            weight=NOT_TO_BE_HAD,
            numbers={"platform": platform, "arm": arm, "config": config},
        )


def _might_fit(ended: Attempt) -> bool:
    """Whether today's rule would have tried a remedy that the attempt did without."""
    texts = [evidence.text for evidence in ended.diagnosis.evidence]
    return len(ended.record.tries) == 1 and any(read_shortage(text).in_pieces for text in texts)
