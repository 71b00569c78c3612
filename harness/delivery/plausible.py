"""Can one record be true? Its promises, its ranks' results, and the limits that the same run measured."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.contract.codec import decode, encode, fields_of
from harness.contract.errors import SpecError, show
from harness.contract.frontier import CARDS
from harness.contract.measured import Measured, RankResult
from harness.contract.parity import (
    Trace,
    loss_differences,
    numerics_mismatches,
    reference_mismatches,
    same_training,
    trace_of,
)
from harness.contract.record import Record, refuse_endless
from harness.contract.units import GIB
from harness.measure.flops import flops_per_token, peak_flops, utilization
from harness.supervisor.collect import merge

EQUAL = 1e-6
"""Relative tolerance, for rounding in JSON only."""
MERGED_APART = ("flags", "throttle", "sm_mhz", "search", "frontier", "startup_s")
"""Fields that do not come from the ranks' results, or that older code merged in another way."""
WINDOW_SLACK = 0.1
"""Relative tolerance between the sum of the steps and the window around them; stored runs differ by at most 2%."""
BUS_SLACK = 1.25
"""How much faster an all-gather may be than the all-reduce that measured the bus; up to 5% in stored runs."""
CARD_SLACK = 1.02
"""Tolerance for memory: cards of one name report up to 1% more than the table, and an allocator rounds its cap up."""
RING = {"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0}
"""Kind -> how often (W - 1) / W of the payload crosses a bus; as nccl-tests define it."""


def record_problems(folder: Path, record: Record, trained: Mapping[str, Trace], done: Counter[str]) -> Iterator[str]:
    """What cannot be true in a record, in words; `trained` holds the references' trainings, `done` counts checks."""
    yield from _gate(record, trained, done)
    m = record.measured
    if record.source is None and m is not None and not record.spec.protocol.ladder:
        yield from _made_again(folder, record, m, done)
        yield from _consistent(record, m)
        if record.spec.platform.device == "cuda":
            yield from _speed(record, m, done)
            yield from _traffic(record, m, done)
            yield from _memory(record, m, done)


def _gate(record: Record, trained: Mapping[str, Trace], done: Counter[str]) -> Iterator[str]:
    """Whether a run that counts kept the promises of an arm that fixes the numerics."""
    m = record.measured
    if record.outcome != "ok" or m is None or record.spec.protocol.ladder:
        return
    if not all(map(math.isfinite, m.loss)):
        yield "loss: not finite, so the run cannot be ok"
    if record.spec.identity.arm == "defaults":
        return
    if m.found is not None:
        done["numerics read back"] += 1
        yield from map(str, numerics_mismatches(record.spec, m.found))
    reference = trained.get(same_training(record.spec))
    if reference is None or not m.loss:
        return
    done["losses held against the reference"] += 1
    if record.spec.data.tokens != "skewed":
        yield from map(str, reference_mismatches(record.spec, trace_of(m), reference))
        return
    protocol = record.spec.protocol
    apart = max(loss_differences(m.loss, reference.loss, protocol.parity_steps), default=0.0)
    if apart > protocol.parity_tolerance:
        yield f"loss: {apart:.2%} off the reference's, at most {protocol.parity_tolerance:.2%} allowed"


def _made_again(folder: Path, record: Record, m: Measured, done: Counter[str]) -> Iterator[str]:
    """Merge the ranks' results again and compare them with the record's numbers."""
    ranks = range(record.spec.platform.world_size)
    place = folder / f"try-{record.tries[-1].index}" if record.tries else folder
    try:
        results = [_rank_result(place / f"result-{rank}.json") for rank in ranks]
        again = encode(merge(results, record.spec, m.throttle, m.sm_mhz))
    except FileNotFoundError:
        if record.outcome == "ok":
            yield f"{place.name}: found no result of every rank, so the numbers cannot be made again"
        return
    except (OSError, ValueError, AttributeError, LookupError, TypeError, ArithmeticError, SpecError) as error:
        yield f"{place.name}: a rank's result cannot be read: {type(error).__name__}: {error}"
        return
    done["numbers made again from the ranks' results"] += 1
    own = {name: value for name, value in encode(m).items() if name not in MERGED_APART}
    for key, (said, made) in list(_differences(own, again))[:3]:
        yield f"measured.{key}: the record says {show(said)}, its ranks' results give {show(made)}"


def _rank_result(path: Path) -> RankResult:
    """One rank's result; keys of older versions are left out."""
    refuse_endless(path)
    plain, known = json.loads(path.read_text(encoding="utf-8")), fields_of(RankResult) or {}
    return decode(RankResult, {name: value for name, value in plain.items() if name in known})


def _differences(own: Any, again: Any, key: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Dotted keys with both values. A value that one side does not have counts as equal."""
    if own is None or again is None:
        return
    if isinstance(own, dict) and isinstance(again, dict):
        for name in (name for name in own if name in again):
            yield from _differences(own[name], again[name], f"{key}.{name}" if key else name)
    elif isinstance(own, list) and isinstance(again, list) and len(own) == len(again):
        for index, pair in enumerate(zip(own, again, strict=True)):
            yield from _differences(*pair, f"{key}[{index}]")
    elif isinstance(own, int | float) and isinstance(again, int | float):
        if not math.isclose(own, again, rel_tol=EQUAL, abs_tol=1e-12) and not (math.isnan(own) and math.isnan(again)):
            yield key, (own, again)
    elif own != again:
        yield key, (own, again)


def _consistent(record: Record, m: Measured) -> Iterator[str]:
    """Compare numbers of one record that follow from each other."""
    spec, steps = record.spec, record.spec.protocol.timed_steps
    if m.tokens_per_step is not None and m.tokens_per_step != spec.tokens_per_step:
        yield f"tokens_per_step: found {m.tokens_per_step}, the spec gives {spec.tokens_per_step}"
    if m.step_time_s is None or m.tokens_per_s is None:
        return
    if not math.isclose(m.tokens_per_s, spec.tokens_per_step / m.step_time_s, rel_tol=EQUAL):
        yield f"tokens_per_s: found {m.tokens_per_s:.6g}, step_time_s gives {spec.tokens_per_step / m.step_time_s:.6g}"
    window_s = m.step_time_s * steps
    if m.step_times_s and not math.isclose(sum(m.step_times_s), window_s, rel_tol=WINDOW_SLACK):
        yield f"step_times_s: add up to {sum(m.step_times_s):.4g} s, the timed window is {window_s:.4g} s"
    if record.wall_s is not None and window_s > record.wall_s:
        yield f"step_time_s: {steps} steps take {window_s:.4g} s, the whole attempt took {record.wall_s:.4g} s"
    per_gpu = m.tokens_per_s / spec.platform.world_size
    mfu = utilization(spec.model.config, spec.data.sequence_length, per_gpu, spec.platform.accelerator, causal=False)
    if m.mfu is not None and mfu is not None and not math.isclose(m.mfu, mfu, rel_tol=1e-3):
        yield f"mfu: found {m.mfu:.4f}, the speed gives {mfu:.4f}"


def _speed(record: Record, m: Measured, done: Counter[str]) -> Iterator[str]:
    spec = record.spec
    per_token = flops_per_token(spec.model.config, spec.data.sequence_length, causal=True)
    if per_token is None or m.tokens_per_s is None:
        return
    by_rank = (m.preflight or {}).get("matmul_flops_per_s_by_rank")
    rates = [*(by_rank if isinstance(by_rank, list) else ()), _number(m.preflight, "matmul", "flops_per_s")]
    measured = max((rate for rate in rates if isinstance(rate, int | float)), default=None)
    sheet = peak_flops(spec.platform.accelerator)
    reached = per_token * m.tokens_per_s / spec.platform.world_size
    if measured is not None:
        done["speed held against the run's own matmul"] += 1
    if measured is not None and reached > measured:
        yield _above("tokens_per_s", reached, "FLOP/s a GPU", measured, "matrix product that the same run measured")
    elif sheet is not None and max(reached, measured or 0.0) > sheet:
        yield _above("tokens_per_s", max(reached, measured or 0.0), "FLOP/s a GPU", sheet, "card's data sheet")


def _traffic(record: Record, m: Measured, done: Counter[str]) -> Iterator[str]:
    bus, collectives = _number(m.preflight, "all_reduce", "bus_bytes_per_s"), (m.profile or {}).get("collectives")
    if bus is None or not isinstance(collectives, dict):
        return
    done["traffic held against the run's own all-reduce"] += 1
    ranks = record.spec.platform.world_size
    by_node = (m.preflight or {}).get("bus_bytes_per_s_by_node")
    if isinstance(by_node, list):
        # HSDP and hpZ exchange inside a node, which is faster than the all-reduce over all nodes.
        bus = max([bus, *(rate for rate in by_node if isinstance(rate, int | float))])
        ranks = record.spec.platform.ranks_per_node
    for kind in (kind for kind in RING if kind in collectives):
        payload, time_s = _number(collectives, kind, "payload_bytes"), _number(collectives, kind, "time_s")
        rate = RING[kind] * (ranks - 1) / ranks * payload / time_s if payload and time_s else 0.0
        if rate > bus * BUS_SLACK:
            yield _above(f"profile.collectives.{kind}", rate, "bytes/s", bus, "all-reduce that the same run measured")


def _memory(record: Record, m: Measured, done: Counter[str]) -> Iterator[str]:
    platform, memory = record.spec.platform, m.memory
    if memory is None:
        return
    if (memory.peak_allocated_bytes or 0) > (memory.peak_reserved_bytes or math.inf):
        yield "memory: more allocated than reserved"
    card, limits = CARDS.get(platform.accelerator), {}
    if card is not None:
        done["memory held against the card"] += 1
        limits = dict.fromkeys(("peak_reserved_bytes", "device_used_bytes"), card[0])
    if platform.memory_cap_gib is not None:
        limits["peak_reserved_bytes"] = platform.memory_cap_gib
    for name, limit_gib in limits.items():
        held = getattr(memory, name)
        if held is not None and held > limit_gib * CARD_SLACK * GIB:
            yield _above(f"memory.{name}", held / GIB, "GiB", limit_gib, "platform's card or cap")


def _number(plain: Any, *path: str) -> float | None:
    """The number at this path of an untyped part of a record."""
    for name in path:
        plain = plain.get(name) if isinstance(plain, dict) else None
    return float(plain) if isinstance(plain, int | float) and not isinstance(plain, bool) else None


def _above(key: str, found: float, unit: str, limit: float, what: str) -> str:
    return f"{key}: {found:.4g} {unit} is above the {limit:.4g} of the {what}"
