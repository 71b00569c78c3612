"""Findings: sentences computed from the records, each with its numbers beside it.

A finding appears only when the cells it compares were measured; nothing here knows a published number.
"""

from collections.abc import Callable, Iterable
from typing import Any

from bench.across import nccl_growth, pipes, stage_order
from bench.cells import CellResult, step_time_s
from bench.deaths import SurvivalLine
from bench.finding import Finding, peak_gb, times, uncertainty
from bench.results import Results, comparable, speed
from bench.stats import Ratio
from harness.contract.units import GB
from harness.measure.flops import shape_of
from harness.measure.ledger import predict

MS = 1000
TINY_GB = 0.005
"""What two decimals show as nothing, of either sign."""
SAID_GB = 0.1
"""A predicted difference of state below this is left unsaid."""
OFFLOADED = {"fsdp2-reshard": "fsdp2-reshard-offload", "zero-3": "zero-3-offload"}
"""Config -> the same one with parameters and optimizer state in host memory."""


def head_to_head(results: Results) -> Iterable[Finding]:
    """FSDP2 with resharding against ZeRO-3: the same sharding by two engines, offloaded too, in every variant."""
    for platform, arm in results.places():
        for fsdp2, zero3 in twins(results):
            fsdp, zero = results.get(platform, fsdp2, arm), results.get(platform, zero3, arm)
            ratio = results.speed_ratio(fsdp, zero)
            if fsdp is not None and zero is not None and ratio is not None:
                yield _head_to_head(fsdp, zero, ratio)


def twins(results: Results) -> list[tuple[str, str]]:
    """Pairs of configs that shard alike under FSDP2 and ZeRO-3, variants with the same suffix included."""
    plain = results.pairs("fsdp2-reshard", "zero-3")
    return plain + results.pairs(OFFLOADED["fsdp2-reshard"], OFFLOADED["zero-3"])


def _head_to_head(fsdp: CellResult, zero: CellResult, ratio: Ratio) -> Finding:
    platform, config, arm = fsdp.key
    other = zero.key[1]
    numbers: dict[str, Any] = {
        "platform": platform,
        "arm": arm,
        "config": config,
        "ratio": ratio.value,
        "tie": ratio.tie,
    }
    speeds = f"{speed(fsdp):.0f} against {speed(zero):.0f} tok/s"
    text = f"{platform}, {arm}: {config} trains {times(ratio)} as fast as {other}, {speeds}"
    if ratio.tie:
        text = f"{platform}, {arm}: {config} and {other} tie on speed, ratio {times(ratio)}, {speeds}"
    mine, theirs = peak_gb(fsdp), peak_gb(zero)
    if mine and theirs:
        numbers["peak_change"] = mine / theirs - 1
        change = f"{abs(mine / theirs - 1) * 100:.0f}% {'lighter' if mine < theirs else 'heavier'}"
        much = "as heavy" if abs(mine - theirs) < TINY_GB else change
        who = f"{config} is" if ratio.tie else "is"
        text += f", and {who} {much} at its peak ({mine:.2f} against {theirs:.2f} GB)"
    return Finding(kind="head_to_head", sentence=text + ".", numbers=numbers)


def precision(results: Results) -> Iterable[Finding]:
    """How much of that memory difference the numerics alone account for, by the memory ledger's state."""
    for platform, arm in results.places():
        fsdp, zero = results.get(platform, "fsdp2-reshard", arm), results.get(platform, "zero-3", arm)
        if fsdp is None or zero is None or fsdp.cell.spec is None or zero.cell.spec is None:
            continue
        if not comparable(fsdp, zero):
            continue
        mine, theirs, shape = predict(fsdp.cell.spec), predict(zero.cell.spec), shape_of(fsdp.cell.spec.model.config)
        light, heavy = fsdp.peak(), zero.peak()
        if mine is None or theirs is None or shape is None or not light or not heavy:
            continue
        expected, measured = (theirs.state - mine.state) / GB, (heavy - light) / GB
        # Of a model so small that its state does not show, nothing can be said.
        if mine.state >= theirs.state or light >= heavy or expected < SAID_GB:
            continue
        ranks = fsdp.cell.spec.platform.world_size
        over = f"{ranks} rank{'s' if ranks > 1 else ''}"
        per_parameter = [ledger.state * ranks / shape.parameters for ledger in (mine, theirs)]
        moments = [cell.cell.spec.numerics.optimizer_state for cell in (fsdp, zero) if cell.cell.spec]
        yield Finding(
            kind="precision",
            sentence=(
                f"{platform}, {arm}: the memory difference is {'' if expected >= measured else 'partly '}precision: "
                f"fsdp2-reshard keeps {per_parameter[0]:.0f} bytes of state per parameter over all ranks ({moments[0]} "
                f"Adam), zero-3 keeps {per_parameter[1]:.0f} ({moments[1]} Adam). On {over} that alone predicts "
                f"{expected:.1f} GB a rank less; {measured:.1f} GB less were measured. Two different trainings are "
                f"compared."
            ),
            numbers={
                "platform": platform,
                "arm": arm,
                "state_bytes": per_parameter,
                "expected_gb": expected,
                "measured_gb": measured,
            },
        )


def own_cost(results: Results) -> Iterable[Finding]:
    """What each engine costs by itself, over plain data parallelism on one rank, where nothing is communicated."""
    for platform, arm in results.places():
        for variant in (name for name, _ in results.pairs("ddp", "ddp")):
            plain = results.get(platform, variant, arm)
            if plain is None or plain.cell.spec is None or plain.cell.spec.platform.world_size > 1:
                continue
            others = [results.get(platform, config, arm) for config in results.configs() if config != variant]
            ratios = {o.key[1]: r for o in others if o is not None and (r := results.speed_ratio(plain, o)) is not None}
            if not ratios:
                continue
            told = [f"{name} {'ties with it' if r.tie else times(r)}" for name, r in ratios.items()]
            yield Finding(
                kind="own_cost",
                sentence=f"{platform}, {arm}: with nothing to communicate, a step takes over that of {variant}: "
                f"{'; '.join(told)}.",
                numbers={"platform": platform, "arm": arm} | {name: r.value for name, r in ratios.items()},
            )


def reshard_price(results: Results) -> Iterable[Finding]:
    """What freeing the parameters after forward costs, and what it gives back."""
    for platform, arm in results.places():
        free, keep = results.get(platform, "fsdp2-reshard", arm), results.get(platform, "fsdp2-noreshard", arm)
        ratio = results.speed_ratio(free, keep)
        if free is None or keep is None or ratio is None or free.cell.spec is None:
            continue
        if free.cell.spec.platform.world_size == 1:
            # With nobody to share with there is nothing to free.
            continue
        saved = (keep.peak() or 0) - (free.peak() or 0)
        price = "nothing beyond the noise" if ratio.tie else f"{-ratio.change * 100:.0f}% of the speed"
        if ratio.change > 0 and not ratio.tie:
            price = f"nothing: it is {ratio.change * 100:.0f}% faster"
        yield Finding(
            kind="reshard_price",
            sentence=(
                f"{platform}, {arm}: resharding after forward costs {price}{uncertainty(ratio)} "
                f"and gives back {abs(saved / GB) if abs(saved / GB) < TINY_GB else saved / GB:.2f} GB."
            ),
            numbers={
                "platform": platform,
                "arm": arm,
                "change": ratio.change,
                "tie": ratio.tie,
                "saved_gb": saved / GB,
            },
        )


def offload_exchange(results: Results) -> Iterable[Finding]:
    """What each gigabyte that offload gives back costs in speed."""
    for platform, arm in results.places():
        for config, offloaded in OFFLOADED.items():
            here, away = results.get(platform, config, arm), results.get(platform, offloaded, arm)
            ratio = results.speed_ratio(here, away)
            if here is None or away is None or ratio is None or here.cell.spec is None:
                continue
            if here.cell.spec.platform.device != "cuda":
                continue
            before, after = peak_gb(here), peak_gb(away)
            step_s = here.median(step_time_s)
            if not before or not after or not step_s:
                continue
            cost = "costs no speed beyond the noise" if ratio.tie else f"makes it {1 / ratio.value:.1f}x faster"
            if ratio.value > 1 and not ratio.tie:
                cost = f"makes it {ratio.value:.1f}x slower"
            price = ""
            if ratio.value > 1 and not ratio.tie and before > after:
                price = f": each GB given back costs {step_s * (ratio.value - 1) / (before - after) * MS:.0f} ms a step"
            yield Finding(
                kind="offload",
                sentence=(
                    f"{platform}, {arm}: offload takes {config} from {before:.2f} to {after:.2f} GB "
                    f"and {cost}{uncertainty(ratio)}{price}."
                ),
                numbers={
                    "platform": platform,
                    "arm": arm,
                    "config": config,
                    "slowdown": ratio.value,
                    "before_gb": before,
                    "after_gb": after,
                },
            )


def survival(lines: Iterable[SurvivalLine]) -> Iterable[Finding]:
    """The memory interval between what lived and what died, and whether need foretells how soon."""
    for line in lines:
        where = f"{line.platform}, {line.arm}"
        lived = f"{line.survivor} at {line.survivor_bytes / GB:.1f} GB lived"
        if line.casualty_bytes is None:
            yield Finding(kind="survival", sentence=f"{where}: {lived}; how much the dead needed is not known.")
            continue
        low, high = line.survivor_bytes / GB, line.casualty_bytes / GB
        died = f"{line.casualty} at {high:.1f} GB died without a remedy"
        text = f"{where}: the survival line runs between {low:.1f} and {high:.1f} GB: {lived}, {died}"
        if line.at_least:
            died = f"{line.casualty} died without a remedy when it held {high:.1f} GB and asked for more"
            text = f"{where}: the survival line lies above {low:.1f} GB: {lived}, {died}"
        if len(line.lasted) > 1:
            story = ", ".join(f"{config} ({peak / GB:.1f} GB) after {n}" for config, peak, n in line.lasted)
            lesson = ""
            if line.trend is not None and abs(line.trend) > 0.9:
                lesson = f"; the farther above the line, the {'sooner' if line.trend < 0 else 'later'} the death"
            text += f"; {line.unit} before death: {story}{lesson}"
        yield Finding(
            kind="survival",
            sentence=text + ".",
            numbers={"platform": line.platform, "low_gb": low, "high_gb": high, "trend": line.trend},
        )


def does_not_fit(results: Results) -> Iterable[Finding]:
    """Cells that ran out of memory in every run."""
    for (platform, config, arm), cell in results.cells.items():
        if cell.outcome not in ("cuda_oom", "cuda_oom_fragmentation"):
            continue
        sentences = [run.newest.diagnosis.sentence for run in cell.runs if run.newest]
        yield Finding(
            kind="does_not_fit",
            sentence=f"{platform}, {arm}: {config} does not fit.",
            detail=sentences[0] if sentences else "",
            numbers={"platform": platform, "arm": arm, "config": config},
        )


def arms_apart(results: Results) -> Iterable[Finding]:
    """How much of the speed difference between the engines is numerics: the same pair in both arms."""
    for platform in results.platforms:
        ratios = {}
        for arm in ("defaults", "matched"):
            pair = results.get(platform, "fsdp2-reshard", arm), results.get(platform, "zero-3", arm)
            ratio = results.speed_ratio(*pair)
            if ratio is not None:
                ratios[arm] = ratio
        if len(ratios) == 2:
            yield _arms(platform, ratios["defaults"], ratios["matched"])


def _arms(platform: str, shipped: Ratio, equal: Ratio) -> Finding:
    factor = shipped.over(equal)
    text = (
        f"{platform}: fsdp2-reshard over zero-3 is {times(shipped)} as shipped and {times(equal)} at equal numerics: "
    )
    if factor.tie:
        text += f"what precision and optimizer kernels make of it ({factor.low:.2f} to {factor.high:.2f}) is no more "
        text += "than runs differ by."
    else:
        text += f"a factor {factor.value:.2f} is precision and optimizer kernels."
    numbers = {"platform": platform, "defaults": shipped.value, "matched": equal.value, "tie": factor.tie}
    return Finding(kind="arms", sentence=text, numbers=numbers)


FINDERS: tuple[Callable[[Results], Iterable[Finding]], ...] = (
    head_to_head,
    arms_apart,
    own_cost,
    precision,
    reshard_price,
    stage_order,
    pipes,
    nccl_growth,
    offload_exchange,
    does_not_fit,
)


def find_all(results: Results, lines: Iterable[SurvivalLine]) -> list[Finding]:
    """Every finding the records support, in reading order."""
    return [finding for finder in FINDERS for finding in finder(results)] + list(survival(lines))
