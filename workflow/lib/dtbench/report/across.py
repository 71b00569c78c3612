"""Findings across platforms: what turns with the card, the pipe or the number of GPUs."""

from collections.abc import Iterable

from dtbench.report.finding import Finding, apart, level, percent, times, uncertainty
from dtbench.results.cells import nccl_share
from dtbench.results.comparison import Results
from dtbench.results.stats import Ratio


def stage_order(results: Results) -> Iterable[Finding]:
    """ZeRO-3 against ZeRO-2 on every platform: which pipe turns the order around."""
    for arm in results.arms:
        parts, ratios, leads = [], {}, set()
        for platform in results.platforms:
            ratio = results.speed_ratio(results.get(platform, "zero-3", arm), results.get(platform, "zero-2", arm))
            if ratio is None:
                continue
            ratios[platform] = ratio.value
            if not ratio.tie:
                leads.add(ratio.value > 1)
            if ratio.tie:
                parts.append(f"on {platform} they {level(ratio)} (ratio {times(ratio)})")
            elif ratio.value > 1:
                parts.append(f"on {platform} zero-3 is {ratio.change * 100:.0f}% ahead of zero-2{uncertainty(ratio)}")
            else:
                parts.append(f"on {platform} zero-2 is {times(ratio.inverse)} as fast as zero-3")
        if parts:
            turns = len(leads) > 1
            verdict = "the order of zero-2 and zero-3 turns with the platform" if turns else "zero-3 against zero-2"
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
