"""Figures as deterministic SVG: the same context gives the same bytes."""

import io
from typing import Any

from dtbench.report.decisions import Chart, Decision, Point
from dtbench.report.details import TimeRow
from dtbench.report.sections import CellRow, PlatformSection
from dtbench.results.deaths import SurvivalLine
from dtbench.results.stats import Summary
from harness.contract.units import GB

COLORS = {"defaults": "#8fb8de", "matched": "#1f5f99", "tuned": "#0b2f52"}
SHARES = {
    "compute": ("compute", "#1f5f99"),
    "comm_exposed": ("exposed communication", "#d1662f"),
    "copy_exposed": ("exposed copies", "#e0b13c"),
    "idle": ("idle", "#c9ced6"),
}
ALIVE, DEAD, DIM, PARETO = "#2e7d4f", "#b3261e", "#667085", "#1f5f99"


def draw(context: dict[str, Any]) -> dict[str, str]:
    """Figure name -> SVG text: throughput and memory always, time and survival when there is something to show."""
    import matplotlib

    style: Any = {
        "svg.hashsalt": "bench",
        "svg.fonttype": "path",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
    }
    with matplotlib.rc_context(style):
        figures = {
            "throughput": _bars(context, "tokens_per_s", "tok/s, all ranks"),
            "memory": _bars(context, "peak_gb", "peak GB, fullest rank"),
        }
        for index, decision in enumerate(context["decisions"], start=1):
            if decision.chart.points or decision.chart.dead:
                figures[f"decision-{index}"] = _speed_over_memory(decision)
        if context["time"]:
            figures["time"] = _time(context["time"])
        lines = [line for line in context["survival"] if line.casualty_bytes is not None]
        if lines:
            figures["survival"] = _survival(lines)
        return {name: _svg(figure) for name, figure in figures.items()}


def _speed_over_memory(decision: Decision) -> Any:
    """Every config of one place: the Pareto set joined by a line, dead ones on the line where memory ends."""
    from matplotlib.figure import Figure

    chart = decision.chart
    figure = Figure(figsize=(5.2, 3.1))
    axis = figure.subplots()
    edge = sorted((p for p in chart.points if p.pareto), key=lambda point: point.peak_gb)
    axis.plot([p.peak_gb for p in edge], [p.tokens_per_s for p in edge], color=PARETO, linewidth=1.2, zorder=1)
    for point in chart.points:
        face = PARETO if point.pareto else "white"
        axis.plot(point.peak_gb, point.tokens_per_s, "o", color=PARETO, markerfacecolor=face, markersize=6)
    top = max((p.tokens_per_s for p in chart.points), default=1.0) * 1.15
    right = max([p.peak_gb for p in chart.points] + [gb for _, gb in chart.dead] + [chart.capacity_gb or 0.0]) * 1.04
    axis.set_xlim(0, right)
    axis.set_ylim(0, top)
    if chart.capacity_gb is not None:
        axis.axvline(chart.capacity_gb, color=DEAD, linewidth=1, linestyle="--")
    for index, (name, gb) in enumerate(chart.dead):
        y = top * (0.08 + 0.1 * index)
        axis.plot(gb, y, "X", color=DEAD, markersize=7)
        axis.annotate(f"{name} ", (gb, y), xytext=(-6, 0), textcoords="offset points", ha="right", va="center",
                      fontsize=7, color=DEAD)  # fmt: skip
    for point, y in _spread_labels(chart, right, top):
        left = point.peak_gb > right * 0.6
        axis.annotate(point.config, (point.peak_gb, y), xytext=(-7 if left else 7, 0), textcoords="offset points",
                      ha="right" if left else "left", va="center", fontsize=7)  # fmt: skip
    axis.set_xlabel("peak GB, fullest rank; dashed: what its allocator may hold")
    axis.set_ylabel("tok/s, median")
    return figure


def _spread_labels(chart: Chart, right: float, top: float) -> list[tuple[Point, float]]:
    """A height for each label, so that those that share a part of the width do not cover each other."""
    gap, width = top * 0.065, right * 0.45
    placed: list[tuple[Point, float]] = []
    for point in sorted(chart.points, key=lambda p: (p.tokens_per_s, p.config)):
        near = [y for other, y in placed if abs(other.peak_gb - point.peak_gb) < width]
        placed.append((point, max([point.tokens_per_s, *(y + gap for y in near if y + gap > point.tokens_per_s)])))
    return placed


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _figure(rows: int, height: float, ratios: list[float] | None = None) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height))
    return figure, figure.subplots(rows, 1, squeeze=False, height_ratios=ratios)[:, 0]


def _names(platform: PlatformSection) -> list[str]:
    """Configs with a row in any arm's table, in the order of the tables; configs that have not run yet have none."""
    return list(dict.fromkeys(row.config for table in platform.tables for row in table.rows))


def _number(row: CellRow, column: str) -> tuple[float | None, float, float]:
    value: Summary | float | None = getattr(row, column)
    if isinstance(value, Summary):
        return value.median, value.median - value.low, value.high - value.median
    return value, 0.0, 0.0


def _bars(context: dict[str, Any], column: str, label: str) -> Any:
    """Horizontal bars, one panel a platform; a cell without a number shows its outcome."""
    platforms = [p for p in context["platforms"] if _names(p)] or context["platforms"][:1]
    heights = [0.9 + len(_names(p)) * (0.16 + 0.16 * len(p.tables)) for p in platforms]
    figure, axes = _figure(len(platforms), sum(heights), heights)
    for axis, platform in zip(axes, platforms, strict=True):
        _bar_panel(axis, platform, column)
        axis.set_title(platform.name, loc="left", fontweight="bold")
        axis.set_xlabel(label)
    return figure


def _bar_panel(axis: Any, platform: PlatformSection, column: str) -> None:
    tables = platform.tables
    names = _names(platform)
    width = 0.8 / len(tables)
    for place, table in enumerate(tables):
        offset = (place - (len(tables) - 1) / 2) * width
        for row in table.rows:
            y = names.index(row.config)
            value, below, above = _number(row, column)
            if value is None:
                color = DEAD if row.runs else DIM
                axis.text(0, y + offset, f" {row.outcome}", va="center", fontsize=7, color=color)
                continue
            failed = row.outcome != "ok"
            axis.barh(
                y + offset,
                value,
                width * 0.92,
                color="white" if failed else COLORS[table.arm],
                edgecolor=DEAD if failed else COLORS[table.arm],
                hatch="////" if failed else None,
            )
            if below or above:
                axis.errorbar(value, y + offset, xerr=[[below], [above]], color="#333333", capsize=2, linewidth=0.8)
            mark = " \u2020" if row.dagger else ""
            text = f"  {value:.0f}{mark}" if column == "tokens_per_s" else f"  {value:.2f}{mark}"
            axis.text(value + above, y + offset, text, va="center", fontsize=7)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    if len(tables) > 1:
        handles = _arm_handles([table.arm for table in tables])
        axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(tables), frameon=False)


def _arm_handles(arms: list[str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(color=COLORS[arm], label=arm) for arm in arms]


def _time(rows: list[TimeRow]) -> Any:
    """Stacked shares of a step, one bar a cell."""
    figure, (axis,) = _figure(1, 1.2 + 0.26 * len(rows))
    names = [f"{row.platform}  {row.config}  {row.arm}" for row in rows]
    left = [0.0] * len(rows)
    for key, (label, color) in SHARES.items():
        values = [getattr(row, key) for row in rows]
        axis.barh(range(len(rows)), values, 0.75, left=left, color=color, label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axis.set_yticks(range(len(rows)), names)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of a step, profiled pass")
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(SHARES), frameon=False)
    return figure


def _survival(lines: list[SurvivalLine]) -> Any:
    """Configs by the memory they need: alive, dead, and the interval between."""
    heights = [1.0 + 0.24 * len(line.points) for line in lines]
    figure, axes = _figure(len(lines), sum(heights), heights)
    for axis, line in zip(axes, lines, strict=True):
        if line.casualty_bytes is not None:
            axis.axvspan(line.survivor_bytes / GB, line.casualty_bytes / GB, color="#f1e3c6", label="survival line")
        for y, point in enumerate(line.points):
            color = ALIVE if point.alive else DEAD
            axis.hlines(y, 0, point.need_bytes / GB, color="#d9dde3", linewidth=1, zorder=1)
            axis.plot(point.need_bytes / GB, y, "o" if point.alive else "X", color=color, markersize=7)
            axis.annotate(
                f"{point.need_bytes / GB:.2f}",
                (point.need_bytes / GB, y),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        axis.set_yticks(range(len(line.points)), [p.config for p in line.points])
        axis.set_title(f"{line.platform}, {line.arm}", loc="left", fontweight="bold")
        axis.set_xlim(left=0)
        axis.margins(x=0.1, y=0.12)
        axis.set_xlabel("peak GB a rank; cross: died without a remedy")
    return figure
