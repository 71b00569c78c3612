"""The ledger against every GPU record of this project: a finished run's peak, and each rung of a fit frontier."""

import statistics
from pathlib import Path

import pytest
from dtbench.fit.answer import BAND
from msgspec.structs import replace

from harness.contract.frontier import sized
from harness.contract.record import Record, read_record
from harness.contract.spec import RunSpec
from harness.measure.ledger import predict

RESULTS = Path(__file__).resolve().parents[2] / "results"
Error = tuple[str, float]
"""Config and micro-batch that it is of, and the ledger's relative error there."""


def measured(record: Record) -> list[tuple[RunSpec, int]]:
    """Specs as they ran and their measured peaks in bytes. Cited records are left out: they do not say how they ran."""
    found, spec = record.measured, record.spec
    if record.source is not None or found is None or spec.platform.device != "cuda":
        return []
    if spec.protocol.ladder:
        return [(sized(spec, r.size), r.peak_allocated_bytes) for r in found.frontier or () if r.peak_allocated_bytes]
    kept = next((trial.settings for trial in found.search or () if trial.kept), {})
    spec = replace(spec, engine=replace(spec.engine, settings=spec.engine.settings | kept))
    peak = found.memory.peak_allocated_bytes if found.memory else None
    return [(spec, peak)] if peak else []


@pytest.fixture(scope="module")
def errors() -> list[Error]:
    found = []
    for path in sorted(RESULTS.rglob("record.json")):
        for spec, peak in measured(read_record(path)):
            ledger = predict(spec)
            assert ledger is not None
            cell = f"{spec.platform.world_size} {spec.identity.arm} {spec.engine} {spec.data}"
            found.append((cell, ledger.device_peak / peak - 1))
    return found


def test_the_ledger_is_near_every_stored_peak(errors: list[Error]) -> None:
    sizes = [abs(error) for _, error in errors]
    assert len(sizes) > 100
    assert statistics.median(sizes) <= 0.03
    assert max(sizes) <= 0.10


def test_the_band_holds_for_cells_left_out(errors: list[Error]) -> None:
    cells: dict[str, float] = {}
    for cell, error in errors:
        cells[cell] = max(cells.get(cell, 0), abs(error))
    inside = 0
    for left_out, error in cells.items():
        others = sorted(size for cell, size in cells.items() if cell != left_out)
        # The band that the other cells alone would give, at 95% of them.
        inside += error <= others[int(0.95 * len(others))]
    assert inside / len(cells) >= 0.9
    assert sum(error <= BAND for error in cells.values()) / len(cells) >= 0.9
