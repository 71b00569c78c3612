"""Interval arithmetic, against a brute-force model on a grid of points."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harness.measure.traffic import clip, length, subtract, union

Spans = list[tuple[float, float]]
spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def points(intervals: Spans) -> set[int]:
    return {p for start, end in intervals for p in range(int(start), int(end))}


@given(spans)
def test_union_covers_the_same_points_and_is_disjoint(intervals: Spans) -> None:
    merged = union(intervals)
    assert points(merged) == points(intervals)
    assert length(merged) == len(points(intervals))
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(spans, spans)
def test_subtract_leaves_the_points_outside(left: Spans, right: Spans) -> None:
    rest = subtract(union(left), union(right))
    assert points(rest) == points(left) - points(right)
    assert length(rest) == len(points(rest))


@given(spans)
def test_clip_stays_inside(intervals: Spans) -> None:
    assert points(clip(intervals, (5, 20))) == points(intervals) & set(range(5, 20))
