"""Findings: sentences computed from the records, each with its numbers beside it.

A finding appears only when the cells it compares were measured; nothing here knows a published number.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from dtbench.report.memory_findings import does_not_fit, offload_exchange, precision, survival
from dtbench.report.sentences import Finding, apart, level, peak_gb, percent, times, uncertainty
from dtbench.results.cells import CellResult, nccl_share
from dtbench.results.comparison import BASELINES, ON_DEVICE, PARAMETERS_TOO, RESHARDING, SAME_SHARDING, Results, speed
from dtbench.results.deaths import SurvivalLine
from dtbench.results.stats import Ratio
from harness.contract.units import GB

TINY_GB = 0.005
"""What two decimals show as nothing, of either sign."""


def head_to_head(results: Results) -> Iterable[Finding]:
    """The same sharding by two engines, offloaded too, in every variant."""
    twins = [pair for first, second in SAME_SHARDING for pair in results.pairs(first, second)]
    for platform, arm in results.places():
        for first, second in twins:
            one, other = results.get(platform, first, arm), results.get(platform, second, arm)
            ratio = results.speed_ratio(one, other)
            if one is not None and other is not None and ratio is not None:
                yield _head_to_head(one, other, ratio)


def _head_to_head(one: CellResult, two: CellResult, ratio: Ratio) -> Finding:
    platform, config, arm = one.key
    other = two.key[1]
    numbers: dict[str, Any] = {
        "platform": platform,
        "arm": arm,
        "config": config,
        "ratio": ratio.value,
        "tie": ratio.tie,
    }
    speeds = f"{speed(one):.0f} against {speed(two):.0f} tok/s"
    text = f"{platform}, {arm}: {config} trains {times(ratio)} as fast as {other}, {speeds}"
    if ratio.tie:
        text = f"{platform}, {arm}: {config} and {other} {level(ratio)} on speed, ratio {times(ratio)}, {speeds}"
    mine, theirs = peak_gb(one), peak_gb(two)
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
        for variant in (name for base in BASELINES for name, _ in results.pairs(base, base)):
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
    for (platform, arm), (freeing, keeping) in itertools.product(results.places(), RESHARDING):
        free, keep = results.get(platform, freeing, arm), results.get(platform, keeping, arm)
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
    for platform, (first, second) in itertools.product(results.platforms, ON_DEVICE):
        ratios = {}
        for arm in ("defaults", "matched"):
            ratio = results.speed_ratio(results.get(platform, first, arm), results.get(platform, second, arm))
            if ratio is not None:
                ratios[arm] = ratio
        if len(ratios) == 2:
            yield _arms(f"{platform}: {first} over {second}", platform, ratios, results.floor(platform))


def _arms(what: str, platform: str, ratios: dict[str, Ratio], floor: float) -> Finding:
    shipped, equal = ratios["defaults"], ratios["matched"]
    factor = shipped.over(equal, floor)
    text = f"{what} is {times(shipped)} as shipped and {times(equal)} at equal numerics: "
    if factor.tie:
        text += f"what precision and optimizer kernels make of it ({factor.low:.2f} to {factor.high:.2f}) is no more "
        text += "than runs differ by."
    else:
        text += f"a factor {factor.value:.2f} is precision and optimizer kernels."
    numbers = {"platform": platform, "defaults": shipped.value, "matched": equal.value, "tie": factor.tie}
    return Finding(kind="arms", sentence=text, numbers=numbers)


def stage_order(results: Results) -> Iterable[Finding]:
    """Parameters sharded too against kept whole, on every platform: which pipe turns the order around."""
    for arm, (all_of_it, less) in itertools.product(results.arms, PARAMETERS_TOO):
        parts, ratios, leads = [], {}, set()
        for platform in results.platforms:
            ratio = results.speed_ratio(results.get(platform, all_of_it, arm), results.get(platform, less, arm))
            if ratio is None:
                continue
            ratios[platform] = ratio.value
            if not ratio.tie:
                leads.add(ratio.value > 1)
            if ratio.tie:
                parts.append(f"on {platform} they {level(ratio)} (ratio {times(ratio)})")
            elif ratio.value > 1:
                parts.append(
                    f"on {platform} {all_of_it} is {ratio.change * 100:.0f}% ahead of {less}{uncertainty(ratio)}"
                )
            else:
                parts.append(f"on {platform} {less} is {times(ratio.inverse)} as fast as {all_of_it}")
        if parts:
            turns = len(leads) > 1
            verdict = (
                f"the order of {less} and {all_of_it} turns with the platform"
                if turns
                else f"{all_of_it} against {less}"
            )
            yield Finding(
                kind="stage_order", sentence=f"{arm}: {verdict}: {'; '.join(parts)}.", numbers={"arm": arm} | ratios
            )


def nccl_growth(results: Results) -> Iterable[Finding]:
    """The NCCL share of the same config on each platform."""
    for arm in results.arms:
        rows = {config: shares for config in results.configs() if len(shares := _shares(results, config, arm)) > 1}
        places = [platform for platform in results.platforms if any(platform in shares for shares in rows.values())]
        if not rows:
            continue
        text = "; ".join(
            f"{config} {' -> '.join(f'{shares[p] * 100:.1f}%' if p in shares else '-' for p in places)}"
            for config, shares in rows.items()
        )
        yield Finding(
            kind="nccl_share",
            sentence=f"{arm}: share of kernel time spent in NCCL, {' -> '.join(places)}: {text}.",
            numbers={"arm": arm, **{config: list(shares.values()) for config, shares in rows.items()}},
        )


def _shares(results: Results, config: str, arm: str) -> dict[str, float]:
    """Platform -> NCCL share of one config, as most platforms run it."""
    by_setup: dict[str, dict[str, float]] = {}
    for platform in results.platforms:
        cell = results.get(platform, config, arm)
        share = cell.median(nccl_share) if cell is not None else None
        # Of one rank there is no share to speak of.
        if cell is None or share is None or cell.cell.spec is None or cell.cell.spec.platform.world_size == 1:
            continue
        by_setup.setdefault(cell.cell.peculiar, {})[platform] = share
    return max(by_setup.values(), key=len, default={})


def pipes(results: Results) -> Iterable[Finding]:
    """The same cards over another interconnect."""
    entries = {key[0]: cell.cell.spec.platform for key, cell in results.cells.items() if cell.cell.spec}
    for wide in results.platforms:
        for thin in results.platforms:
            a, b = entries.get(wide), entries.get(thin)
            if a is None or b is None or a.interconnect != "nvlink" or b.interconnect == "nvlink":
                continue
            if (a.accelerator, a.world_size, a.memory_cap_gib) != (b.accelerator, b.world_size, b.memory_cap_gib):
                continue
            yield from _pipe(results, wide, thin)


def _change(ratio: Ratio) -> str:
    return f"{'0%' if ratio.tie else percent(ratio.change)}{apart(ratio)}"


def _pipe(results: Results, wide: str, thin: str) -> Iterable[Finding]:
    for arm in results.arms:
        ratios = {}
        for config in results.configs():
            here, there = results.get(thin, config, arm), results.get(wide, config, arm)
            ratio = results.speed_ratio(here, there)
            # Set otherwise there, the config is another one: the pipe is not all that changed.
            if ratio is not None and here and there and here.cell.departs == there.cell.departs:
                ratios[config] = ratio
        if ratios:
            text = ", ".join(f"{config} {_change(ratio)}" for config, ratio in ratios.items())
            yield Finding(
                kind="pipe",
                sentence=f"{arm}: the same GPUs over {thin} instead of {wide} change the speed: {text}.",
                numbers={"arm": arm, "thin": thin, "wide": wide, **{c: r.value for c, r in ratios.items()}},
            )


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
