"""The search for the frontier, against a machine whose memory is a straight line."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.contract.codec import decode
from harness.contract.errors import SpecError
from harness.contract.frontier import (
    PACKED,
    Bounds,
    Frontier,
    Probe,
    Rung,
    capacity_bytes,
    predicted_limit,
    probe_spec,
)
from harness.contract.spec import RunSpec
from harness.plans import sentence
from harness.search.ladders import Known, next_ladder, search
from tests.engines.specs import make_spec

SPEC = make_spec("fsdp2-reshard", platform__memory_cap_gib=1.0)


def prober(largest: int, *, death: str = "cuda_oom", phase: str = "backward") -> Callable[[RunSpec], Probe]:
    """A probe on a machine where sizes up to `largest` fit."""

    def probe(spec: RunSpec) -> Probe:
        ladder = spec.protocol.ladder
        rungs = [Rung(size=size, fits=True) for size in ladder if size <= largest]
        failing = [size for size in ladder if size > largest][:1]
        fits = False if death == "cuda_oom" else None
        rungs += [Rung(size=size, fits=fits, outcome=death, phase=phase) for size in failing]
        return Probe(folder="x", ladder=ladder, outcome=death if failing else "ok", wall_s=1.0, rungs=tuple(rungs))

    return probe


def find(largest: int, bounds: Bounds, predicted: int | None = None, **death: str) -> Frontier:
    def predict(spec: RunSpec) -> int | None:
        return None if predicted is None else spec.data.micro_batch * int(2**30 * PACKED) // predicted

    return search(SPEC, bounds, predict, prober(largest, **death))


@given(largest=st.integers(1, 200), predicted=st.integers(1, 200), rungs=st.integers(2, 10))
def test_the_search_is_right_after_any_prediction(largest: int, predicted: int, rungs: int) -> None:
    found = find(largest, Bounds(limit=256, resolution=1, rungs=rungs, processes=40), predicted)
    assert (found.largest_fit, found.smallest_fail, found.ended) == (largest, largest + 1, "found")
    assert found.predicted == predicted


@given(largest=st.integers(1, 200), error=st.floats(0.6, 1.7))
def test_a_fair_prediction_needs_three_processes_at_most(largest: int, error: float) -> None:
    found = find(largest, Bounds(limit=256, resolution=1), max(1, round(largest * error)))
    assert found.largest_fit == largest
    assert len(found.probes) <= 3


@given(largest=st.integers(0, 40), predicted=st.none() | st.integers(1, 64))
def test_no_size_is_tried_twice_and_ladders_rise(largest: int, predicted: int | None) -> None:
    found = find(largest, Bounds(limit=64, resolution=1, rungs=4, processes=40), predicted)
    tried = [rung.size for probe in found.probes for rung in probe.rungs]
    assert len(tried) == len(set(tried))
    assert all(list(p.ladder) == sorted(set(p.ladder)) and len(p.ladder) <= 4 for p in found.probes)
    assert max(tried) <= 64


def test_without_a_capacity_sizes_double() -> None:
    spec = make_spec("ddp", platform__accelerator="unheard-of")
    assert capacity_bytes(spec.platform) is None
    found = search(spec, Bounds(limit=64, resolution=1), lambda _: 1, prober(11))
    assert found.probes[0].ladder == (1, 2, 4, 8, 16, 32, 64)
    assert (found.largest_fit, found.predicted) == (11, None)


def test_sequences_step_by_the_resolution() -> None:
    spec = make_spec("fsdp2-reshard", platform__memory_cap_gib=1.0, protocol__ladder_over="sequence_length")
    found = search(spec, Bounds(limit=32768, resolution=256), lambda s: s.data.sequence_length * 2**17, prober(9000))
    assert (found.predicted, found.largest_fit, found.smallest_fail) == (7680, 8960, 9216)
    assert all(size % 256 == 0 for probe in found.probes for size in probe.ladder)


def test_a_limit_that_fits_ends_the_search() -> None:
    found = find(1000, Bounds(limit=64, resolution=1), 30)
    assert (found.largest_fit, found.smallest_fail, found.ended) == (64, None, "limit")


def test_the_smallest_size_may_not_fit() -> None:
    found = find(0, Bounds(limit=64, resolution=1), 8)
    assert (found.largest_fit, found.smallest_fail, found.ended) == (None, 1, "nothing")
    assert "largest micro_batch none, 1 does not fit, predicted 8" in sentence(found)


def test_a_model_too_large_is_tried_once() -> None:
    found = find(0, Bounds(limit=64, resolution=1), 32, phase="init")
    assert (found.largest_fit, found.ended, len(found.probes)) == (None, "nothing", 1)


def test_another_death_says_nothing_about_the_size() -> None:
    found = find(4, Bounds(limit=64, resolution=1), 8, death="python_exception")
    assert (found.largest_fit, found.smallest_fail, found.ended) == (4, None, "python_exception")


def test_processes_are_bounded() -> None:
    found = find(200, Bounds(limit=256, resolution=1, rungs=2, processes=2), 4)
    assert (len(found.probes), found.ended) == (2, "processes")


def test_a_probe_only_tries_its_ladder() -> None:
    spec = make_spec("zero-3", protocol__trials=[{"leaf_blocks": True}], protocol__profiled_steps=3)
    probe = probe_spec(spec, (2, 4, 8))
    assert probe.protocol.ladder == (2, 4, 8)
    assert (probe.data.micro_batch, probe.total_steps, probe.protocol.trials) == (2, 6, ())
    assert (probe.protocol.remedies, probe.protocol.profiled_steps) == ("off", 0)
    assert probe.engine == spec.engine


def test_the_largest_size_below_capacity_is_predicted() -> None:
    bounds = Bounds(limit=100, resolution=1)
    for capacity in (0, 7, 8, 9, 399, 400, 10_000):
        predicted = predicted_limit(SPEC, bounds, capacity, lambda s: s.data.micro_batch * 4)
        assert predicted == min(100, math.floor(capacity * PACKED / 4))
    assert predicted_limit(SPEC, bounds, 10, lambda _: None) is None


def test_a_ladder_tries_open_sizes_only() -> None:
    bounds = Bounds(limit=64, resolution=1, rungs=3)
    assert next_ladder(Known(fits=4, fails=6), bounds, None, first=False) == (5,)
    assert next_ladder(Known(fits=10, fails=30), bounds, None, first=False) == (15, 20, 25)
    assert next_ladder(Known(fits=60), bounds, None, first=False) == (64,)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"rungs": 0}, {"processes": 0}, {"resolution": 0}, {"resolution": 65}])
def test_bounds_that_allow_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="expected"):
        decode(Bounds, {"limit": 64, "resolution": 1} | wrong)
