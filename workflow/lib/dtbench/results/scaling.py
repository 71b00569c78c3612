"""One config at several sizes: measured efficiency, and what more nodes would do, projected from one node."""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import structs

from dtbench.results.cells import CellResult
from dtbench.results.comparison import Results
from dtbench.results.numbers import number, profile_value, step_time_s, tokens_per_s
from dtbench.study.platforms import PlatformEntry
from harness.contract.engines.traffic import crossing
from harness.contract.record import Record
from harness.contract.spec import RunSpec
from harness.measure.ledger import messages

NODES = (2, 4, 8, 16)
"""Sizes to project for, in nodes."""
PERCENT = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What one node can send to the others."""

    bytes_per_s: float
    latency_s: float
    source: str
    """`given` or `measured`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingRow:
    """One config at one size."""

    config: str
    arm: str
    ranks: int
    nodes: int
    platform: str
    """Empty where this size was not run."""
    tokens_per_s: float | None = None
    efficiency_percent: float | None = None
    """Tokens per second and rank over those of the smallest size that ran."""
    exposed_percent: float | None = None
    """Share of the profiled step in which communication is not hidden behind compute."""
    projected_tokens_per_s: float | None = None
    error_percent: float | None = None
    """Projected over measured, less 1."""


def scaling_rows(results: Results, platforms: dict[str, PlatformEntry]) -> list[ScalingRow]:
    """Rows of every config that ran at several sizes, or on a node whose link is known; sizes from small to large."""
    families: dict[tuple[object, ...], list[CellResult]] = {}
    for result in results.cells.values():
        spec = result.cell.spec
        if spec is not None and result.finished and result.median(step_time_s):
            key = (spec.identity.arm, spec.identity.config, spec.platform.accelerator, *result.cell.terms)
            families.setdefault(key, []).append(result)
    return [row for family in families.values() for row in _family(family, platforms)]


def _family(family: list[CellResult], platforms: dict[str, PlatformEntry]) -> Iterator[ScalingRow]:
    measured = {_size(result): result for result in family}
    projected: dict[tuple[int, int], float] = {}
    for result in family:
        if _size(result)[1] == 1 and (link := _link(family, platforms)) is not None:
            projected |= _projections(result, link)
    sizes = sorted(measured.keys() | projected.keys())
    if len(sizes) < 2:
        return
    smallest = measured[min(measured)]
    for ranks, nodes in sizes:
        ran, expected = measured.get((ranks, nodes)), projected.get((ranks, nodes))
        speed = ran.median(tokens_per_s) if ran else None
        exposed = ran.mean(profile_value("shares.comm_exposed")) if ran else None
        base, first = smallest.median(tokens_per_s), min(measured)[0]
        yield ScalingRow(
            config=smallest.cell.config,
            arm=smallest.cell.arm,
            ranks=ranks,
            nodes=nodes,
            platform=ran.cell.platform if ran else "",
            tokens_per_s=speed,
            efficiency_percent=PERCENT * speed / ranks / (base / first) if speed and base else None,
            exposed_percent=PERCENT * exposed if exposed is not None else None,
            projected_tokens_per_s=expected,
            error_percent=PERCENT * (expected / speed - 1) if expected and speed else None,
        )


def _size(result: CellResult) -> tuple[int, int]:
    assert result.cell.spec is not None
    platform = result.cell.spec.platform
    return platform.world_size, platform.nodes


def _link(family: list[CellResult], platforms: dict[str, PlatformEntry]) -> Link | None:
    """The link that a platform of the family states, else what the preflight of its fewest nodes measured."""
    for result in family:
        entry = platforms[result.cell.platform]
        if entry.link_gbit_per_s is not None:
            return Link(
                bytes_per_s=entry.link_gbit_per_s * 1e9 / 8, latency_s=entry.link_latency_us * 1e-6, source="given"
            )
    for result in sorted(family, key=lambda result: _size(result)[1]):
        if _size(result)[1] > 1 and (found := result.median(_bus_bytes_per_s)):
            return Link(bytes_per_s=found, latency_s=0.0, source="measured")
    return None


def _bus_bytes_per_s(record: Record) -> float | None:
    """Bus bandwidth of the preflight's all-reduce: what a ring moves over its slowest link."""
    return number(record.measured.preflight if record.measured else None, "all_reduce", "bus_bytes_per_s")


def _projections(one_node: CellResult, link: Link) -> dict[tuple[int, int], float]:
    """(ranks, nodes) -> projected tokens per second; empty for an engine that does not say what it sends."""
    spec, step_s = one_node.cell.spec, one_node.median(step_time_s)
    assert spec is not None
    ranks = spec.platform.world_size
    # With several micro-steps an engine may keep gradients back: how often it reduces is not known here.
    if step_s is None or spec.data.gradient_accumulation > 1:
        return {}
    overlap = one_node.median(profile_value("overlap"))
    compute = one_node.median(profile_value("shares.compute"))
    found = {}
    for nodes in NODES:
        seconds = _crossing_s(spec, nodes, link)
        if seconds is not None:
            exposed_s = _exposed_s(seconds, step_s, overlap, compute)
            found[ranks * nodes, nodes] = spec.tokens_per_step * nodes / (step_s + exposed_s)
    return found


def _crossing_s(spec: RunSpec, nodes: int, link: Link) -> float | None:
    ranks = spec.platform.world_size
    larger = structs.replace(spec, platform=structs.replace(spec.platform, world_size=ranks * nodes, nodes=nodes))
    sent = messages(larger)
    if sent is None:
        return None
    backend = "gloo" if spec.platform.device == "cpu" else "nccl"
    return crossing(sent, nodes, ranks, backend).seconds(link.bytes_per_s, link.latency_s)


def _exposed_s(seconds: float, step_s: float, overlap: float | None, compute: float | None) -> float:
    """Part of the time on the link that compute does not hide.

    As much is hidden as on one node, but never more than there is compute. Without a profiled pass nothing is.
    """
    if overlap is None or compute is None:
        return seconds
    return max(seconds * (1 - overlap), seconds - compute * step_s)
