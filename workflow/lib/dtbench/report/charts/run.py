"""The small charts of one run as SVG."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dtbench.report.charts.svg import Box, Canvas, Scale, grid_y

WIDTH, HEIGHT = 330.0, 120.0
MOST_POINTS = 50
"""Points a line is drawn with; more are thinned evenly."""
SLOW = 0.05
"""How much longer than the median a step is at least to be marked, unless the steps scatter more."""
PARTS = (("compute", "f-compute"), ("comm_exposed", "f-comm"), ("copy_exposed", "f-copy"), ("idle", "f-idle"))


class Line(NamedTuple):
    """One line of a chart; `kind` colours it."""

    points: Sequence[tuple[float, float]]
    kind: str = "s-matched"


def outliers(values: Sequence[float]) -> list[int]:
    """Indices of steps that took longer than the others' scatter explains: three robust deviations and 5%."""
    if len(values) < 3:
        return []
    median = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(value - median) for value in values)
    bound = median + max(3 * deviation, SLOW * median)
    return [index for index, value in enumerate(values) if value > bound]


def steps(warmup_s: Sequence[float], timed_s: Sequence[float]) -> str:
    """Milliseconds of each step: the warm-up dim and cut where it leaves the chart, slow timed steps with a cross."""
    top = max([*timed_s, 0.0]) * 1000 or max([*warmup_s, 0.0]) * 1000
    early = [(float(i), min(value * 1000, top * 1.1)) for i, value in enumerate(warmup_s)]
    timed = [(float(len(warmup_s) + i), value * 1000) for i, value in enumerate(timed_s)]
    marks = [(*timed[i], f"step {len(warmup_s) + i}: {timed_s[i] * 1000:.1f} ms") for i in outliers(timed_s)]
    return lines([Line(early, "s-dim"), Line(timed)], "ms", low=0.0, marks=marks)


def lines(
    shown: Sequence[Line],
    unit: str,
    *,
    along: str = "step *",
    low: float | None = None,
    marks: Sequence[tuple[float, float, str]] = (),
) -> str:
    """Lines over one axis; `low` fixes where the y axis starts; marks are x, y and what the pointer shows there.

    The last line carries the scales as attributes, from which the page's script shows its value under the pointer;
    `along` says where that is, its asterisk being the value on the x axis.
    """
    drawn = [Line(_thinned([p for p in line.points if math.isfinite(p[1])]), line.kind) for line in shown]
    found = [point for line in drawn for point in line.points]
    if not found:
        return ""
    canvas = Canvas(WIDTH, HEIGHT)
    area = Box(46, 6, WIDTH - 6, HEIGHT - 8)
    across = Scale(min(x for x, _ in found), max(x for x, _ in found), area.left, area.right)
    ends = min(y for _, y in found) if low is None else low, max(y for _, y in found)
    room = (ends[1] - ends[0]) * 0.06 or abs(ends[1]) * 0.06 or 1.0
    up = Scale(ends[0] - (room if low is None else 0.0), ends[1] + room, area.bottom, area.top)
    grid_y(canvas, up, area.left, area.right, most=4)
    told = " ".join(f"{value:g}" for value in (*across, *up))
    for line in drawn:
        more = f' data-scales="{told}" data-unit="{unit}" data-along="{along}"' if line is drawn[-1] else ""
        # Whole px along the x axis: a page has hundreds of these lines.
        canvas.line([(round(across(x)), up(y)) for x, y in line.points], f"{line.kind} w", more)
    for x, y, words in marks:
        canvas.cross(across(x), up(y), "s-dead", words)
    return canvas.render()


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    stride = max(1, math.ceil(len(points) / MOST_POINTS))
    return list(points[::stride])


def shares(parts: dict[str, float]) -> str:
    """One bar: the parts of a profiled step, which together are the whole of it."""
    canvas = Canvas(WIDTH, 18)
    reached = 0.0
    for name, kind in PARTS:
        share = parts.get(name, 0.0)
        if share > 0:
            told = f"{name.replace('_', ' ')}: {share * 100:.1f}% of a step"
            canvas.rect(reached * WIDTH, 0, share * WIDTH, 16, kind, told)
        reached += share
    return canvas.render()
