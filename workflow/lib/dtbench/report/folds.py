"""One fold per run of the HTML report: everything that its record, logs and telemetry say of it."""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dtbench.report.charts.run import Line, lines, shares, steps
from dtbench.report.charts.svg import anchor_of
from dtbench.report.render import fixed
from dtbench.results import numbers as c
from dtbench.results.cells import CellResult
from dtbench.results.runs import MISSING, Attempt, Run, references
from harness.contract.codec import essence
from harness.contract.errors import clip
from harness.contract.measured import Measured
from harness.contract.outcome import Diagnosis
from harness.contract.parity import Trace, same_training
from harness.contract.record import Record
from harness.contract.units import GB

MOST_FOLDS = 200
"""Runs with a fold: a page of all runs of a very large study would be too heavy to open."""
LEFT_OUT = ("identity", "platform", "spec_version", "model.config", "environment")
"""Parts of a spec that differ from run to run by nature, or that the report shows elsewhere."""


class Chart(NamedTuple):
    """A small chart and what it shows."""

    caption: str
    svg: str


class Part(NamedTuple):
    """One part of a rank's memory, in GB."""

    name: str
    predicted_gb: float | None
    measured_gb: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFold:
    """One run."""

    title: str
    outcome: str
    path: str
    """Folder of its attempt below the study's results."""
    facts: tuple[tuple[str, str], ...]
    charts: tuple[Chart, ...]
    memory: tuple[Part, ...]
    kernels: tuple[tuple[str, float], ...]
    """Kind of kernel, milliseconds per profiled step; longest first."""
    diagnoses: tuple[Diagnosis, ...]
    """Of every try that did not end well; the last by today's rules."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFold:
    """The runs of one cell."""

    anchor: str
    platform: str
    config: str
    arm: str
    outcomes: str
    settings: tuple[tuple[str, str], ...]
    """Dotted key of the spec and its value, where that is not the default."""
    runs: tuple[RunFold, ...]
    more: int
    """Runs that have no fold."""


def run_folds(cells: Sequence[CellResult], results: Path) -> list[CellFold]:
    """The folds of every cell with a record: all its runs, or equally many per cell where there are too many."""
    ran = [cell for cell in cells if any(run.newest for run in cell.runs)]
    most = max(1, MOST_FOLDS // max(len(ran), 1))
    if sum(len(cell.runs) for cell in ran) <= MOST_FOLDS:
        most = MOST_FOLDS
    known = references(attempt.record for cell in ran for run in cell.runs for attempt in run.attempts)
    return [_cell(cell, most, known, results) for cell in ran]


def _cell(cell: CellResult, most: int, known: dict[str, Trace], results: Path) -> CellFold:
    platform, config, arm = cell.key
    # Where not all are shown, those that failed say more than one that ran like the others.
    runs = sorted((run for run in cell.runs if run.newest), key=lambda run: run.outcome == "ok")[:most]
    shown = sorted(runs, key=lambda run: run.spec.identity.repeat)
    folds = [_run(run, run.newest, known.get(same_training(run.spec)), results) for run in shown if run.newest]
    told = ", ".join(f"{n} {name}" for name, n in sorted(cell.outcomes.items()))
    return CellFold(
        anchor=anchor_of(*cell.key),
        platform=platform,
        config=config,
        arm=arm,
        outcomes=told,
        settings=tuple(_settings(essence(cell.runs[0].spec))),
        runs=tuple(folds),
        more=sum(run.outcome != MISSING for run in cell.runs) - len(folds),
    )


def _run(run: Run, newest: Attempt, reference: Trace | None, results: Path) -> RunFold:
    record, measured = newest.record, newest.record.measured
    where = f", machine {run.machine}" if run.machine else ""
    return RunFold(
        title=f"repeat {record.spec.identity.repeat}, attempt {record.spec.identity.attempt}{where}",
        outcome=run.outcome,
        path=newest.path,
        facts=tuple(_facts(run, record)),
        charts=tuple(chart for chart in _charts(record, measured, reference, results / newest.path) if chart.svg),
        memory=tuple(_memory(record, measured)) if measured else (),
        kernels=tuple(_kernels(measured)) if measured else (),
        diagnoses=tuple(_diagnoses(newest)),
    )


def _facts(run: Run, record: Record) -> Iterator[tuple[str, str]]:
    yield "speed", fixed(c.tokens_per_s(record), 1, " tok/s")
    yield "peak", fixed(_gb(c.peak_bytes(record)), 2, " GB")
    yield "MFU", fixed(_percent(c.mfu(record)), 1, "%")
    yield "power of a GPU", fixed(c.watts_per_gpu(record), 0, " W")
    yield "clock", fixed(c.sm_mhz(record), 0, " MHz")
    yield "energy", fixed(c.joules_per_token(record), 4, " J/token")
    yield "loss off the reference", fixed(_percent(run.parity.difference if run.parity else None), 2, "%")
    if record.measured:
        yield from _experts(record.measured.busiest_experts)
        yield from _weights(record.measured.loading)
    yield "remedy", (record.tries[-1].remedy if record.tries else None) or "-"
    yield "flags", ", ".join(record.measured.flags) if record.measured and record.measured.flags else "-"
    yield "started", record.started_at or "-"
    yield "took", fixed(record.wall_s, 0, " s")
    yield "source", record.source or "-"


def _experts(busiest: dict[str, float]) -> Iterator[tuple[str, str]]:
    """How uneven the router is: tokens of a block's busiest expert over the mean of its experts."""
    if busiest:
        worst = max(busiest, key=busiest.__getitem__)
        told = f"{busiest[worst]:.2f}x the mean of all in {worst}; median of {len(busiest)} blocks"
        yield "tokens of the busiest expert", f"{told} {statistics.median(busiest.values()):.2f}x"


def _weights(loading: dict[str, float]) -> Iterator[tuple[str, str]]:
    """What reading pretrained weights took."""
    if loading:
        speed = fixed(_gb(loading.get("read_bytes_per_s")), 2, " GB/s")
        yield "weights read", f"{fixed(_gb(loading.get('read_bytes')), 2, ' GB')} a rank at {speed}"
        yield "reading weights took", fixed(loading.get("read_s"), 1, " s")
        yield "download of weights took", fixed(loading.get("download_s") or None, 1, " s")
        yield "peak of host memory until the engine was built", fixed(_gb(loading.get("host_peak_bytes")), 2, " GB")


def _charts(record: Record, measured: Measured | None, reference: Trace | None, folder: Path) -> Iterator[Chart]:
    if measured is not None:
        slow = "ms a step; dim: warm-up, crosses: slow steps"
        yield Chart(slow, steps(measured.warmup_step_times_s, measured.step_times_s))
        loss = Line(list(enumerate(measured.loss)))
        known = reference.loss[: len(measured.loss)] if reference and reference.loss != measured.loss else []
        beside = Line(list(enumerate(known)), "s-dim")
        told = "loss; dim: the reference" if known else "loss"
        yield Chart(told, lines([beside, loss], "loss"))
        found = {name: c.profile_value(f"shares.{name}")(record) for name in _SHARES}
        parts = {name: share for name, share in found.items() if share is not None}
        if len(parts) == len(_SHARES):
            told = ", ".join(f"{_SHARES[name]} {share * 100:.0f}%" for name, share in parts.items())
            yield Chart(f"a profiled step: {told}", shares(parts))
    yield from _over_time(_telemetry(folder / "telemetry.jsonl"))


def _over_time(samples: Sequence["_Sample"]) -> Iterator[Chart]:
    """Power, clock and memory over the seconds of the run."""
    by_gpu: dict[int, list[_Sample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.gpu, []).append(sample)
    for field, factor, unit, caption, choose in _TELEMETRY:
        found = [
            Line([(s.at_s - samples[0].at_s, v * factor) for s in gpu if (v := getattr(s, field)) is not None])
            for gpu in by_gpu.values()
        ]
        told = [line for line in found if line.points]
        shown = [choose(told, key=_level)] if choose and told else told[:MOST_GPUS]
        yield Chart(caption, lines(shown, unit, along="* s", low=0.0))


def _level(line: Line) -> float:
    return statistics.mean(y for _, y in line.points)


MOST_GPUS = 8
"""Lines of a chart of telemetry."""
_SHARES = {
    "compute": "compute",
    "comm_exposed": "exposed communication",
    "copy_exposed": "exposed copies",
    "idle": "idle",
}
_TELEMETRY: tuple[tuple[str, float, str, str, Callable[..., Line] | None], ...] = (
    ("power_w", 1.0, "W", "power, W, a line a GPU", None),
    ("sm_mhz", 1.0, "MHz", "clock of the slowest GPU, MHz", min),
    ("memory_used_bytes", 1 / GB, "GB", "memory in use of the fullest GPU, GB, as the driver sees it", max),
)
"""Field of a sample, factor to the unit shown, unit, caption, and which GPU is shown; None: all of them."""


class _Sample(msgspec.Struct, frozen=True):
    at_s: float
    gpu: int
    sm_mhz: float | None = None
    power_w: float | None = None
    memory_used_bytes: float | None = None


def _telemetry(path: Path) -> list[_Sample]:
    """The samples of a run; lines that are none, such as the last one of a killed run, are left out."""
    try:
        text = path.read_bytes()
    except OSError:
        return []
    found = []
    decoder = msgspec.json.Decoder(_Sample)
    for line in text.splitlines():
        try:
            found.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found


def _memory(record: Record, measured: Measured) -> Iterator[Part]:
    """The ledger's parts beside what was found, then the totals."""
    ledger = measured.ledger or {}
    predicted = ledger.get("parts_bytes")
    state = measured.state
    found = (
        {"parameters": state.parameter_bytes, "gradients": state.gradient_bytes, "optimizer": state.optimizer_bytes}
        if state
        else {}
    )
    for name in dict.fromkeys([*found, *(predicted if isinstance(predicted, dict) else ())]):
        part = Part(name.replace("_", " "), _gb(c.number(predicted, name)), _gb(found.get(name)))
        if part.predicted_gb or part.measured_gb:
            yield part
    yield Part("peak, allocated", _gb(c.number(ledger, "device_peak_bytes")), _gb(c.peak_bytes(record)))
    if memory := measured.memory:
        for name, value in (
            ("reserved by the allocator", memory.peak_reserved_bytes),
            ("outside PyTorch", memory.non_torch_bytes),
            ("host, resident", memory.host_rss_peak_bytes),
            ("host, pinned", memory.host_pinned_bytes),
        ):
            if value and value > GB / 100:
                yield Part(name, None, _gb(value))


def _kernels(measured: Measured) -> Iterable[tuple[str, float]]:
    found = (measured.profile or {}).get("kernel_kinds_s")
    kinds = found if isinstance(found, dict) else {}
    times = {name: ms * 1000 for name in kinds if (ms := c.number(kinds, name)) is not None}
    return sorted(times.items(), key=lambda item: -item[1])


def _settings(plain: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and value of everything in a spec that differs from the defaults."""
    for name, value in plain.items():
        inner = f"{key}.{name}" if key else name
        if inner in LEFT_OUT:
            continue
        if isinstance(value, dict) and value:
            yield from _settings(value, inner)
        else:
            yield inner, clip(json.dumps(value))


def _diagnoses(newest: Attempt) -> Iterator[Diagnosis]:
    for index, one in enumerate(newest.record.tries):
        found = newest.diagnosis if index == len(newest.record.tries) - 1 else one.diagnosis
        if found.outcome != "ok":
            yield found


def _gb(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / GB


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100
