"""Arithmetic on sets of half-open time intervals."""

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as sorted, disjoint intervals; empty ones vanish."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(merged: list[Interval]) -> float:
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in merged)


def subtract(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """Points of `left` outside `right`; both as `union` returns them."""
    rest: list[Interval] = []
    position = 0
    for start, end in left:
        while position < len(right) and right[position][1] <= start:
            position += 1
        cursor, index = start, position
        while index < len(right) and right[index][0] < end:
            if right[index][0] > cursor:
                rest.append((cursor, right[index][0]))
            cursor = max(cursor, right[index][1])
            index += 1
        if cursor < end:
            rest.append((cursor, end))
    return rest


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts that lie inside the window, not merged."""
    inside = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in inside if end > start]
