"""The charts of a study as SVG: the same report gives the same bytes."""

from collections.abc import Iterable, Sequence

from dtbench.report.charts.svg import (
    LINE,
    Box,
    Canvas,
    Scale,
    anchor_of,
    grid_x,
    grid_y,
    legend,
    place_label,
    width_of,
)
from dtbench.report.decisions import Chart, Decision, Point
from dtbench.report.details import TimeRow
from dtbench.report.sections import ArmTable, CellRow, PlatformSection
from dtbench.results.deaths import SurvivalLine
from dtbench.results.stats import Summary
from harness.contract.units import GB

WIDTH = 760.0
SHARES = (
    ("compute", "compute", "f-compute"),
    ("comm_exposed", "exposed communication", "f-comm"),
    ("copy_exposed", "exposed copies", "f-copy"),
    ("idle", "idle", "f-idle"),
)
"""Field of a row, its words, its colour."""
BAR = 12.0
"""Thickness of a bar, px."""
FOOT = 34.0
"""Room below an axis for its values and label."""


def draw(
    platforms: Sequence[PlatformSection],
    decisions: Sequence[Decision],
    time: Sequence[TimeRow],
    survival: Sequence[SurvivalLine],
) -> dict[str, str]:
    """Name of a figure -> its SVG element: throughput and memory always, the others when there is something to show."""
    figures = {
        "throughput": _bars(platforms, "tokens_per_s", "tok/s, all ranks"),
        "memory": _bars(platforms, "peak_gb", "peak GB, fullest rank"),
    }
    for index, decision in enumerate(decisions, start=1):
        if decision.chart.points or decision.chart.dead:
            figures[f"decision-{index}"] = _speed_over_memory(decision)
    if time:
        figures["time"] = _time(time)
    lines = [line for line in survival if line.casualty_bytes is not None]
    if lines:
        figures["survival"] = _survival(lines)
    return figures


def _speed_over_memory(decision: Decision) -> str:
    """Every config of one place: the Pareto set joined by a line, dead ones where memory ends."""
    chart = decision.chart
    canvas = Canvas(520, 320)
    area = Box(48, 8, 512, 320 - FOOT)
    most_gb = max([p.peak_gb for p in chart.points] + [gb for _, gb in chart.dead] + [chart.capacity_gb or 0.0])
    across = Scale(0, most_gb * 1.04 or 1.0, area.left, area.right)
    up = Scale(0, max((p.tokens_per_s for p in chart.points), default=1.0) * 1.12, area.bottom, area.top)
    grid_y(canvas, up, area.left, area.right)
    grid_x(canvas, across, area.top, area.bottom, "peak GB of the fullest rank; upwards: tok/s")
    if chart.capacity_gb is not None:
        x = across(chart.capacity_gb)
        canvas.line([(x, area.top), (x, area.bottom)], "s-dead", ' stroke-dasharray="5 3"')
    edge = sorted((p for p in chart.points if p.pareto), key=lambda point: point.peak_gb)
    canvas.line([(across(p.peak_gb), up(p.tokens_per_s)) for p in edge], "s-pareto", ' stroke-width="1.5"')
    taken = _dead_labels(canvas, chart, across, area)
    if chart.capacity_gb is not None:
        taken.append(Box(across(chart.capacity_gb) - 1, area.top, across(chart.capacity_gb) + 1, area.bottom))
    places = [(point, across(point.peak_gb), up(point.tokens_per_s)) for point in chart.points]
    taken += [Box(x - 5, y - 5, x + 5, y + 5) for _, x, y in places]
    for point, x, y in sorted(places, key=lambda place: (place[2], place[0].config)):
        box = place_label(_label(point), x, y, taken, area)
        taken.append(box)
        _point(canvas, point, x, y, box, anchor_of(decision.platform, point.config, decision.arm))
    return canvas.render()


def _label(point: Point) -> str:
    return point.config if point.paired else f"{point.config} (not paired)"


def _point(canvas: Canvas, point: Point, x: float, y: float, box: Box, link: str) -> None:
    middle = (box.top + box.bottom) / 2
    if abs(middle - y) > LINE / 2:
        canvas.line([(x, y), (box.left if box.left > x else box.right, middle)], "s-dim", ' stroke-width="0.5"')
    told = f"{_label(point)}: {point.tokens_per_s:.0f} tok/s, peak {point.peak_gb:.2f} GB"
    canvas.dot(x, y, f"{'f-pareto' if point.pareto else 'f-paper'} s-pareto", told, link=link)
    canvas.text(box.left, middle, _label(point))


def _dead_labels(canvas: Canvas, chart: Chart, across: Scale, area: Box) -> list[Box]:
    """Crosses one above the other, with their names; returns what they cover."""
    taken = []
    for index, (name, gb) in enumerate(chart.dead):
        x, y = across(gb), area.bottom - LINE * (index + 0.8)
        told = f"{name}: did not fit in {gb:.1f} GB" if chart.capacity_gb else f"{name}: died at {gb:.1f} GB"
        canvas.cross(x, y, "s-dead", told)
        canvas.text(x - 8, y, name, "f-dead", "end")
        taken.append(Box(x - 8 - width_of(name), y - LINE / 2, x + 5, y + LINE / 2))
    return taken


def _names(platform: PlatformSection) -> list[str]:
    """Configs with a row in any arm's table, in the order of the tables; configs that have not run yet have none."""
    return list(dict.fromkeys(row.config for table in platform.tables for row in table.rows))


def _number(row: CellRow, column: str) -> tuple[float | None, float, float]:
    """Value, low and high of one bar."""
    value: Summary | float | None = getattr(row, column)
    if isinstance(value, Summary):
        return value.median, value.low, value.high
    return value, value or 0.0, value or 0.0


def _bars(sections: Sequence[PlatformSection], column: str, label: str) -> str:
    """Horizontal bars, one panel a platform; a cell without a number shows its outcome."""
    platforms = [p for p in sections if _names(p)] or list(sections[:1])
    heights = [len(_names(p)) * (BAR * len(p.tables) + 6) + LINE * 2 + FOOT for p in platforms]
    canvas = Canvas(WIDTH, sum(heights))
    left = max([width_of(name) for p in platforms for name in _names(p)] + [60.0]) + 8
    top = 0.0
    for platform, height in zip(platforms, heights, strict=True):
        canvas.text(left, top + LINE * 0.8, platform.name, "f-ink b")
        if len(platform.tables) > 1:
            legend(canvas, top + LINE * 0.8, WIDTH - 4, [(f"f-{t.arm}", t.arm) for t in platform.tables])
        _panel(canvas, platform, column, label, Box(left, top + LINE * 1.6, WIDTH - 4, top + height - FOOT))
        top += height
    return canvas.render()


def _panel(canvas: Canvas, platform: PlatformSection, column: str, label: str, area: Box) -> None:
    names = _names(platform)
    values = [_number(row, column)[2] for table in platform.tables for row in table.rows]
    scale = Scale(0, (max(values, default=0.0) or 1.0) * 1.15, area.left, area.right)
    grid_x(canvas, scale, area.top, area.bottom, label)
    step = BAR * len(platform.tables) + 6
    for index, name in enumerate(names):
        canvas.text(area.left - 6, area.top + step * (index + 0.5), name, anchor="end")
    for place, table in enumerate(platform.tables):
        for row in table.rows:
            link = anchor_of(platform.name, row.config, table.arm) if row.runs else ""
            y = area.top + step * names.index(row.config) + 3 + BAR * place
            _bar(canvas, scale, table, row, column, y, link)


def _bar(canvas: Canvas, scale: Scale, table: ArmTable, row: CellRow, column: str, y: float, link: str) -> None:
    value, low, high = _number(row, column)
    middle = y + BAR / 2
    if value is None:
        canvas.text(scale.start + 4, middle, row.outcome, "f-dead" if row.runs else "f-dim")
        return
    failed = row.outcome != "ok"
    text = f"{value:.0f}" if column == "tokens_per_s" else f"{value:.2f}"
    spread = "" if low == high else f" ({low:.0f} to {high:.0f})"
    unit = "tok/s" if column == "tokens_per_s" else "GB"
    told = f"{row.config}, {table.arm}: {text}{spread} {unit}, {row.finished} of {row.runs} runs, {row.outcome}"
    kind = "f-dead s-dead h" if failed else f"f-{table.arm}"
    canvas.rect(scale.start, y + 0.5, scale(value) - scale.start, BAR - 1, kind, told, link)
    if low != high:
        canvas.line([(scale(low), middle), (scale(high), middle)], "s-ink")
        for end in (scale(low), scale(high)):
            canvas.line([(end, middle - 3), (end, middle + 3)], "s-ink")
    canvas.text(scale(high) + 6, middle, f"{text} \u2020" if row.dagger else text)


def _time(rows: Sequence[TimeRow]) -> str:
    """Stacked shares of a step, one bar a cell."""
    names = [f"{row.platform}  {row.config}  {row.arm}" for row in rows]
    left = max(map(width_of, names)) + 8
    bottom = LINE * 1.6 + len(rows) * (BAR + 5)
    canvas = Canvas(WIDTH, bottom + FOOT)
    scale = Scale(0, 100, left, WIDTH - 14)
    legend(canvas, LINE * 0.7, WIDTH - 4, [(kind, words) for _, words, kind in SHARES])
    grid_x(canvas, scale, LINE * 1.6, bottom, "% of a step, profiled pass")
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = LINE * 1.6 + index * (BAR + 5) + 2
        canvas.text(left - 6, y + BAR / 2, name, anchor="end")
        reached = 0.0
        for key, words, kind in SHARES:
            share: float = getattr(row, key)
            x = scale(reached)
            canvas.rect(x, y, scale(reached + share) - x, BAR, kind, f"{name}: {words} {share:.1f}% of a step")
            reached += share
    return canvas.render()


def _survival(lines: Iterable[SurvivalLine]) -> str:
    """Configs by the memory they need: alive, dead, and the interval between."""
    shown = list(lines)
    heights = [LINE * 1.6 + len(line.points) * (LINE + 4) + FOOT + 4 for line in shown]
    canvas = Canvas(WIDTH, sum(heights))
    left = max(width_of(point.config) for line in shown for point in line.points) + 8
    top = 0.0
    for line, height in zip(shown, heights, strict=True):
        canvas.text(left, top + LINE * 0.8, f"{line.platform}, {line.arm}", "f-ink b")
        _needs(canvas, line, Box(left, top + LINE * 1.6, WIDTH - 4, top + height - FOOT - 4))
        top += height
    return canvas.render()


def _needs(canvas: Canvas, line: SurvivalLine, area: Box) -> None:
    most = max([point.need_bytes for point in line.points] + [line.casualty_bytes or 0.0]) / GB
    scale = Scale(0, most * 1.1, area.left, area.right)
    low, high = scale(line.survivor_bytes / GB), scale((line.casualty_bytes or 0.0) / GB)
    canvas.rect(low, area.top, high - low, area.bottom - area.top, "f-band", "the survival line lies in this band")
    grid_x(canvas, scale, area.top, area.bottom, "peak GB a rank; cross: died without a remedy")
    for index, point in enumerate(line.points):
        y, x = area.top + (LINE + 4) * (index + 0.5), scale(point.need_bytes / GB)
        canvas.text(area.left - 6, y, point.config, anchor="end")
        canvas.line([(area.left, y), (x, y)], "s-rule")
        told = f"{point.config}: {point.need_bytes / GB:.2f} GB, {'ran' if point.alive else 'died'}"
        mark = canvas.dot if point.alive else canvas.cross
        mark(x, y, "f-alive" if point.alive else "s-dead", told)
        canvas.text(x + 9, y, f"{point.need_bytes / GB:.2f}")
