"""Findings: sentences computed from the records, each with its numbers beside it.

A finding appears only when the cells it compares were measured; nothing here knows a published number.
"""

from collections.abc import Callable, Iterable
from typing import Any

from dtbench.report.across import nccl_growth, pipes, stage_order
from dtbench.report.finding import Finding, level, peak_gb, times, uncertainty
from dtbench.report.memory_findings import OFFLOADED, does_not_fit, offload_exchange, precision, survival
from dtbench.results.cells import CellResult
from dtbench.results.comparison import Results, speed
from dtbench.results.deaths import SurvivalLine
from dtbench.results.stats import Ratio
from harness.contract.units import GB

TINY_GB = 0.005
"""What two decimals show as nothing, of either sign."""


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
        text = f"{platform}, {arm}: {config} and {other} {level(ratio)} on speed, ratio {times(ratio)}, {speeds}"
    mine, theirs = peak_gb(fsdp), peak_gb(zero)
    if mine and theirs:
        numbers["peak_change"] = mine / theirs - 1
        change = f"{abs(mine / theirs - 1) * 100:.0f}% {'lighter' if mine < theirs else 'heavier'}"
        much = "as heavy" if abs(mine - theirs) < TINY_GB else change
        who = f"{config} is" if ratio.tie else "is"
        text += f", and {who} {much} at its peak ({mine:.2f} against {theirs:.2f} GB)"
    return Finding(kind="head_to_head", sentence=text + ".", numbers=numbers)


def _over(ratio: Ratio) -> str:
    if not ratio.tie:
        return times(ratio)
    return "cannot be told apart from it" if ratio.apart else "ties with it"


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
            told = [f"{name} {_over(ratio)}" for name, ratio in ratios.items()]
            yield Finding(
                kind="own_cost",
                sentence=f"{platform}, {arm}: with nothing to communicate, a step takes, compared with {variant}: "
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
        price = f"{-ratio.change * 100:.0f}% of the speed"
        if ratio.tie:
            price = "what is not known" if ratio.apart else "nothing beyond the noise"
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
            yield _arms(platform, ratios["defaults"], ratios["matched"], results.floor(platform))


def _arms(platform: str, shipped: Ratio, equal: Ratio, floor: float) -> Finding:
    factor = shipped.over(equal, floor)
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
