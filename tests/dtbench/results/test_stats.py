"""Medians, intervals, paired ratios, ties."""

import math
import random

import pytest
from dtbench.results.stats import Summary, bootstrap, noise_floor, paired_ratio, rank_correlation, summarize
from hypothesis import given
from hypothesis import strategies as st

values = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=12)


def test_below_five_runs_the_range_is_given() -> None:
    assert summarize([3.0, 1.0, 2.0]) == Summary(2.0, 1.0, 3.0, 3, "range")


def test_from_five_runs_on_a_bootstrap_interval() -> None:
    summary = summarize([10.0, 11.0, 12.0, 13.0, 30.0])
    assert summary is not None
    assert (summary.median, summary.kind, summary.n) == (12.0, "interval", 5)
    assert 10.0 <= summary.low <= 12.0 <= summary.high <= 30.0


def test_an_unmeasured_value_is_none_not_zero() -> None:
    assert summarize([None, None]) is None
    assert summarize([]) is None
    assert summarize([math.nan, math.inf]) is None
    assert summarize([None, 2.0]) == Summary(2.0, 2.0, 2.0, 1, "range")


@given(values)
def test_the_median_lies_inside_its_interval(found: list[float]) -> None:
    summary = summarize(found)
    assert summary is not None
    assert min(found) <= summary.low <= summary.median <= summary.high <= max(found)


def test_the_same_runs_give_the_same_interval() -> None:
    found = [random.Random(1).gauss(100, 5) for _ in range(9)]
    assert bootstrap(found) == bootstrap(found)


def test_the_interval_covers_the_truth_as_stated() -> None:
    draw = random.Random(7)
    covered = 0
    for _ in range(100):
        low, high = bootstrap([draw.gauss(50.0, 4.0) for _ in range(15)])
        covered += low <= 50.0 <= high
    assert covered >= 85


def test_pairing_removes_what_slows_a_whole_block() -> None:
    slow, fast = {1: 100.0, 2: 50.0, 3: 200.0}, {1: 110.0, 2: 55.0, 3: 220.0}
    ratio = paired_ratio(fast, slow, floor=0.02)
    assert ratio is not None
    assert ratio.value == pytest.approx(1.1)
    assert (ratio.low, ratio.high, ratio.n, ratio.tie) == (pytest.approx(1.1), pytest.approx(1.1), 3, False)


def test_inside_the_noise_floor_is_a_tie() -> None:
    assert paired_ratio({1: 101.0}, {1: 100.0}, floor=0.02).tie  # type: ignore[union-attr]
    assert not paired_ratio({1: 110.0}, {1: 100.0}, floor=0.02).tie  # type: ignore[union-attr]


def test_a_range_across_one_is_a_tie() -> None:
    ratio = paired_ratio({1: 120.0, 2: 95.0, 3: 110.0}, {1: 100.0, 2: 100.0, 3: 100.0}, floor=0.0)
    assert ratio is not None
    assert ratio.tie
    assert ratio.low < 1 < ratio.high


def test_without_common_repeats_the_medians_are_divided() -> None:
    ratio = paired_ratio({1: 200.0}, {2: 100.0}, floor=0.0)
    assert ratio is not None
    assert (ratio.value, ratio.n) == (2.0, 0)
    assert paired_ratio({}, {1: 1.0}, floor=0.0) is None


def test_the_noise_floor_is_half_the_spread() -> None:
    repeated = Summary(100.0, 98.0, 102.0, 3, "range")
    assert noise_floor([repeated, None, Summary(5.0, 5.0, 5.0, 1, "range")]) == pytest.approx(0.02)
    assert noise_floor([]) == 0.0


def test_rank_correlation() -> None:
    assert rank_correlation([18.2, 20.1, 21.4], [4016, 456, 0]) == pytest.approx(-1.0)
    assert rank_correlation([1, 2], [2, 1]) is None
    assert rank_correlation([1, 2, 3], [5, 5, 5]) is None


def test_the_interval_is_that_of_scipys_percentile_bootstrap() -> None:
    import numpy as np
    from scipy.stats import bootstrap as scipys

    draw = random.Random(3)
    for size in (5, 8, 28):
        found = [draw.gauss(50.0, 4.0) for _ in range(size)]
        told = scipys((sorted(found),), np.median, n_resamples=2000, method="percentile", rng=np.random.default_rng(0))
        interval = told.confidence_interval
        assert bootstrap(found) == pytest.approx((interval.low, interval.high), rel=1e-12)


def test_rank_correlation_is_scipys_with_ties_too() -> None:
    from scipy.stats import spearmanr

    xs, ys = [1.0, 2.0, 2.0, 5.0, 4.0, 9.0], [3.0, 1.0, 1.0, 7.0, 1.0, 8.0]
    assert rank_correlation(xs, ys) == pytest.approx(float(spearmanr(xs, ys).statistic))


def test_pairs_from_few_machines_keep_their_range() -> None:
    slow = dict.fromkeys(range(6), 100.0)
    fast = {0: 130.0, 1: 131.0, 2: 129.0, 3: 130.0, 4: 131.0, 5: 180.0}
    ratio = paired_ratio(fast, slow, floor=0.0, machines=2)
    assert ratio is not None
    assert (ratio.low, ratio.high) == pytest.approx((1.29, 1.80))
    one_machine = paired_ratio(fast, slow, floor=0.0, machines=1)
    assert one_machine is not None
    assert one_machine.high < 1.80
