"""Findings: sentences computed from the records, each with its numbers beside it.

A finding appears only when the cells it compares were measured; nothing here knows a published number.
"""

import itertools
import math
from collections.abc import Callable, Iterable

from dtbench.report.doubts import compile_incomplete, host_bound, noise, prediction
from dtbench.report.memory_findings import does_not_fit, offload_exchange, precision, survival
from dtbench.report.sentences import (
    Finding,
    Number,
    code,
    costless,
    faster,
    lean,
    listed,
    peak_gb,
    support,
    tied,
    times,
)
from dtbench.results.cells import CellResult
from dtbench.results.comparison import BASELINES, ON_DEVICE, PARAMETERS_TOO, RESHARDING, SAME_SHARDING, Results, speed
from dtbench.results.deaths import SurvivalLine
from dtbench.results.numbers import nccl_share
from dtbench.results.stats import Ratio
from harness.contract.units import GB

TINY_GB = 0.005
"""A number that two decimals show as zero, of either sign."""


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
    mine, theirs = peak_gb(one), peak_gb(two)
    numbers: dict[str, Number] = {
        "platform": platform,
        "arm": arm,
        "config": config,
        "ratio": ratio.value,
        "tie": ratio.tie,
    }
    names = code(config), code(two.key[1])
    text = f"{names[0]} trains {times(ratio)} as fast as {names[1]}{support(ratio)}"
    if ratio.tie:
        text = f"{names[0]} and {names[1]} are {tied(ratio)}"
    medians = "" if len(one.finished) == len(two.finished) == 1 else "medians of all runs: "
    text += f"; {medians}{speed(one):.0f} against {speed(two):.0f} tok/s"
    if mine and theirs:
        numbers["peak_change"] = mine / theirs - 1
        text += f". The peak memory of {names[0]} is {_than(mine, theirs)} ({mine:.2f} against {theirs:.2f} GB)"
    return Finding(kind="head_to_head", sentence=f"{platform}, {arm}: {text}.", weight=lean(ratio), numbers=numbers)


def _than(mine: float, theirs: float) -> str:
    if abs(mine - theirs) < TINY_GB:
        return "the same"
    return f"{abs(mine / theirs - 1) * 100:.0f}% {'lower' if mine < theirs else 'higher'}"


def own_cost(results: Results) -> Iterable[Finding]:
    """What each engine costs by itself: on one rank, where nothing is communicated, against plain data parallelism."""
    variants = [name for base in BASELINES for name, _ in results.pairs(base, base)]
    for (platform, arm), variant in itertools.product(results.places(), variants):
        plain = results.get(platform, variant, arm)
        if plain is None or plain.ranks != 1:
            continue
        others = [results.get(platform, config, arm) for config in results.configs() if config != variant]
        ratios = {o.key[1]: r for o in others if o is not None and (r := results.speed_ratio(plain, o)) is not None}
        if not ratios:
            continue
        told = [
            f"{code(name)} {tied(ratio) if ratio.tie else times(ratio) + support(ratio)}"
            for name, ratio in ratios.items()
        ]
        yield Finding(
            kind="own_cost",
            sentence=f"{platform}, {arm}: on one rank, where nothing is communicated, a step takes this many times as "
            f"long as under {code(variant)}: {'; '.join(told)}.",
            weight=lean(*ratios.values()),
            numbers={"platform": platform, "arm": arm, **{name: r.value for name, r in ratios.items()}},
        )


def reshard_price(results: Results) -> Iterable[Finding]:
    """What freeing the parameters after forward costs, and what it gives back."""
    for (platform, arm), (freeing, keeping) in itertools.product(results.places(), RESHARDING):
        free, keep = results.get(platform, freeing, arm), results.get(platform, keeping, arm)
        ratio = results.speed_ratio(free, keep)
        # One rank shards nothing, so it has nothing to free.
        if free is None or keep is None or ratio is None or free.ranks == 1:
            continue
        saved_gb = ((keep.peak() or 0) - (free.peak() or 0)) / GB
        numbers = {"change": ratio.change, "tie": ratio.tie, "saved_gb": saved_gb}
        saved = f"{saved_gb if abs(saved_gb) >= TINY_GB else 0.0:.2f} GB"
        yield Finding(
            kind="reshard_price",
            sentence=f"{platform}, {arm}: {code(freeing)} frees gathered parameters after forward, which "
            f"{code(keeping)} keeps. This saves {saved} a rank; {_price(ratio)}.",
            weight=lean(ratio),
            numbers={"platform": platform, "arm": arm, **numbers},
        )


def _price(ratio: Ratio) -> str:
    if ratio.tie:
        return costless(ratio)
    if ratio.value > 1:
        return f"it is {ratio.change * 100:.0f}% faster: {times(ratio)}{support(ratio)}"
    return f"it costs {-ratio.change * 100:.0f}% of the speed: {times(ratio)}{support(ratio)}"


def arms_apart(results: Results) -> Iterable[Finding]:
    """How much of the speed difference between the engines is numerics: the same pair in both arms."""
    for platform, (first, second) in itertools.product(results.platforms, ON_DEVICE):
        ratios = {
            arm: ratio
            for arm in ("defaults", "matched")
            if (ratio := results.speed_ratio(results.get(platform, first, arm), results.get(platform, second, arm)))
        }
        if len(ratios) == 2:
            yield _arms(platform, (first, second), ratios, results.floor(platform))


def _arms(platform: str, pair: tuple[str, str], ratios: dict[str, Ratio], floor: float) -> Finding:
    shipped, equal = ratios["defaults"], ratios["matched"]
    factor = shipped.over(equal, floor)
    verdict = f"precision and optimizer kernels make a factor of {factor.value:.2f}"
    if factor.tie:
        verdict = "precision and optimizer kernels make no difference beyond the noise of repeats"
        verdict += f" (a factor of {factor.low:.2f} to {factor.high:.2f})"
    return Finding(
        kind="arms",
        sentence=f"{platform}: {code(pair[0])} trains {times(shipped)} as fast as {code(pair[1])} as shipped"
        f"{support(shipped)} and {times(equal)} as fast at equal numerics{support(equal)}: {verdict}.",
        weight=lean(factor),
        numbers={"platform": platform, "defaults": shipped.value, "matched": equal.value, "tie": factor.tie},
    )


def stage_order(results: Results) -> Iterable[Finding]:
    """Parameters sharded too against kept whole, on every platform: where the order turns around."""
    for arm, (all_of_it, less) in itertools.product(results.arms, PARAMETERS_TOO):
        ratios = {
            platform: ratio
            for platform in results.platforms
            if (ratio := results.speed_ratio(results.get(platform, all_of_it, arm), results.get(platform, less, arm)))
        }
        if not ratios:
            continue
        turns = len({ratio.value > 1 for ratio in ratios.values() if not ratio.tie}) > 1
        start = f"which of {listed([less, all_of_it])} is faster depends on the platform: " if turns else ""
        told = "; ".join(f"on {platform} {_order(ratio, all_of_it, less)}" for platform, ratio in ratios.items())
        numbers = {"arm": arm} | {platform: ratio.value for platform, ratio in ratios.items()}
        # Where the order turns, what is best on one platform is wrong on another.
        weight = lean(*ratios.values()) * (2 if turns else 1)
        yield Finding(kind="stage_order", sentence=f"{arm}: {start}{told}.", weight=weight, numbers=numbers)


def _order(ratio: Ratio, first: str, second: str) -> str:
    if ratio.tie:
        return f"{listed([first, second])} are {tied(ratio)}"
    if ratio.value > 1:
        return f"{code(first)} is {faster(ratio, code(second))}"
    return f"{code(second)} is {faster(ratio.inverse, code(first))}"


def nccl_growth(results: Results) -> Iterable[Finding]:
    """The NCCL share of the same config on each platform."""
    for arm in results.arms:
        rows = {config: shares for config in results.configs() if len(shares := _shares(results, config, arm)) > 1}
        places = [platform for platform in results.platforms if any(platform in shares for shares in rows.values())]
        if not rows:
            continue
        text = "; ".join(
            f"{code(config)} {', '.join(f'{shares[p] * 100:.1f}%' if p in shares else 'unknown' for p in places)}"
            for config, shares in rows.items()
        )
        yield Finding(
            kind="nccl_share",
            sentence=f"{arm}: NCCL takes this share of kernel time, waiting for other ranks included, on "
            f"{', '.join(places)}: {text}.",
            weight=max(max(shares.values()) - min(shares.values()) for shares in rows.values()),
            numbers={"arm": arm, **{config: list(shares.values()) for config, shares in rows.items()}},
        )


def _shares(results: Results, config: str, arm: str) -> dict[str, float]:
    """Platform -> NCCL share of one config, in the setup that most platforms run."""
    by_setup: dict[str, dict[str, float]] = {}
    for platform in results.platforms:
        cell = results.get(platform, config, arm)
        share = cell.median(nccl_share) if cell is not None else None
        # One rank communicates nothing.
        if cell is not None and share is not None and (cell.ranks or 1) > 1:
            by_setup.setdefault(cell.cell.peculiar, {})[platform] = share
    return max(by_setup.values(), key=len, default={})


def pipes(results: Results) -> Iterable[Finding]:
    """The same cards over another interconnect."""
    entries = {key[0]: cell.cell.spec.platform for key, cell in results.cells.items() if cell.cell.spec}
    for wide, thin in itertools.product(results.platforms, repeat=2):
        a, b = entries.get(wide), entries.get(thin)
        if a is None or b is None or a.interconnect != "nvlink" or b.interconnect == "nvlink":
            continue
        if (a.accelerator, a.world_size, a.memory_cap_gib) == (b.accelerator, b.world_size, b.memory_cap_gib):
            yield from _pipe(results, wide, thin)


def _pipe(results: Results, wide: str, thin: str) -> Iterable[Finding]:
    for arm in results.arms:
        ratios = {}
        for config in results.configs():
            here, there = results.get(thin, config, arm), results.get(wide, config, arm)
            ratio = results.speed_ratio(here, there)
            # With other settings it is another config, and the interconnect is not all that changed.
            if ratio is not None and here and there and here.cell.departs == there.cell.departs:
                ratios[config] = ratio
        if ratios:
            text = ", ".join(f"{code(config)} {_change(ratio)}" for config, ratio in ratios.items())
            yield Finding(
                kind="pipe",
                sentence=f"{arm}: on {thin}, the GPUs of {wide} over another interconnect, speed changes by: {text}.",
                weight=lean(*ratios.values()),
                numbers={"arm": arm, "thin": thin, "wide": wide, **{c: r.value for c, r in ratios.items()}},
            )


def _change(ratio: Ratio) -> str:
    if ratio.tie:
        return "an unknown amount, as no machine ran both" if ratio.apart else "nothing beyond the noise of repeats"
    return f"{ratio.change * 100:+.0f}%{' (on different machines)' if ratio.apart else ''}"


ENOUGH = math.log(3)
"""Weight from which on more changes nothing: a factor of three needs no weighing."""

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
    compile_incomplete,
    does_not_fit,
    host_bound,
    noise,
    prediction,
)


def find_all(results: Results, lines: Iterable[SurvivalLine]) -> list[Finding]:
    """Every finding the records support, the ones that would change a decision most first."""
    found = [finding for finder in FINDERS for finding in finder(results)] + list(survival(lines))
    return sorted(found, key=lambda finding: -round(min(finding.weight, ENOUGH), 2))
