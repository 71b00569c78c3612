"""A canvas that writes SVG: elements carry classes, and one style sheet colours them for light, dark and print.

Written here because matplotlib took more than half of a report's time, and Vega would put 0.9 MB of script into each
page. Values that a reader may want stand in `<title>` elements, which browsers show when the pointer rests there.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.diagnosis.inert import for_html

LETTER = 6.1
"""Mean width of a character of a label in px: the SVG's font is the reader's, so widths are estimates."""
LINE = 13.0
"""Height of a line of text in px."""

_LIGHT = {
    "ink": "#1d2530", "dim": "#667085", "rule": "#d9dde3", "paper": "#ffffff", "defaults": "#8fb8de",
    "matched": "#1f5f99", "tuned": "#0b2f52", "compute": "#1f5f99", "comm": "#d1662f", "copy": "#e0b13c",
    "idle": "#c9ced6", "alive": "#2e7d4f", "dead": "#b3261e", "band": "#f1e3c6", "pareto": "#1f5f99",
}  # fmt: skip
_DARK = {
    "ink": "#e6e9ee", "dim": "#9aa4b2", "rule": "#3a4350", "paper": "#12171e", "defaults": "#3f6f9f",
    "matched": "#7fb4e6", "tuned": "#cfe4f8", "compute": "#7fb4e6", "comm": "#ee9460", "copy": "#f0cd6a",
    "idle": "#4a5462", "alive": "#6cc492", "dead": "#ff8a80", "band": "#4d4227", "pareto": "#7fb4e6",
}  # fmt: skip


def _colours(found: dict[str, str]) -> str:
    return "".join(
        f".chart .f-{name}{{fill:{colour}}}.chart .s-{name}{{stroke:{colour}}}" for name, colour in found.items()
    )


STYLE = (
    ".chart{font:11px system-ui,sans-serif}.chart .b{font-weight:600}.chart .l{fill:none}"
    ".chart .h{fill-opacity:.25}.chart .w{stroke-width:1.5}.chart .e{text-anchor:end}.chart .m{text-anchor:middle}"
    f"{_colours(_LIGHT)}@media screen and (prefers-color-scheme:dark){{{_colours(_DARK)}}}"
)
"""Class `f-NAME` fills with a colour, `s-NAME` draws with it. The page that embeds charts needs it once."""


_ANCHORS = {"start": "", "middle": " m", "end": " e"}


def _px(length: float) -> str:
    return f"{round(length, 1):g}"


@dataclass(slots=True)
class Canvas:
    """SVG elements in drawing order; all lengths in px, y downwards."""

    width: float
    height: float
    elements: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "f-ink", anchor: str = "start") -> None:
        """Words whose middle line lies at y; anchor: start, middle or end."""
        kinds = f"{kind}{_ANCHORS[anchor]}"
        self.elements.append(f'<text x="{_px(x)}" y="{_px(y + 4)}" class="{kinds}">{for_html(words)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, told: str = "", link: str = "") -> None:
        """A bar; `told` is shown when the pointer rests on it, `link` is an anchor of the page."""
        size = f'width="{_px(max(width, 0))}" height="{_px(height)}"'
        self._mark(f'<rect x="{_px(x)}" y="{_px(y)}" {size} class="{kind}"', "rect", told, link)

    def dot(self, x: float, y: float, kind: str, told: str = "", radius: float = 4.0, link: str = "") -> None:
        """A point."""
        self._mark(f'<circle cx="{_px(x)}" cy="{_px(y)}" r="{radius:g}" class="{kind}"', "circle", told, link)

    def cross(self, x: float, y: float, kind: str, told: str = "", link: str = "") -> None:
        """A cross: something that died."""
        path = f"M{_px(x - 4)} {_px(y - 4)}l8 8m0 -8l-8 8"
        self._mark(f'<path d="{path}" stroke-width="2.5" class="l {kind}"', "path", told, link)

    def line(self, points: Iterable[tuple[float, float]], kind: str, more: str = "") -> None:
        """A polyline; `more` are further attributes."""
        path = " ".join(f"{_px(x)},{_px(y)}" for x, y in points)
        self.elements.append(f'<polyline points="{path}" class="l {kind}"{more}/>')

    def _mark(self, start: str, name: str, told: str, link: str) -> None:
        mark = f"{start}><title>{for_html(told)}</title></{name}>" if told else f"{start}/>"
        self.elements.append(f'<a href="#{for_html(link)}">{mark}</a>' if link else mark)

    def render(self) -> str:
        """The element, to be put into a page that has STYLE."""
        size = f'width="{self.width:.0f}" height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        # One element a line, so that a changed number is a changed line of the committed file.
        return "\n".join([f'<svg class="chart" {size}>', *self.elements, "</svg>"])


def as_file(element: str) -> str:
    """A chart as a file of its own: with its style and a ground of its own colour."""
    head, _, rest = element.removeprefix("<svg").partition(">")
    ground = '<rect width="100%" height="100%" class="f-paper"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg"{head}>\n<style>{STYLE}</style>\n{ground}{rest}\n'


def anchor_of(platform: str, config: str, arm: str) -> str:
    """Where the page has the runs of a cell."""
    return f"runs-{platform}.{config}.{arm}"


class Scale(NamedTuple):
    """Values from `low` to `high` laid from px `start` to px `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values inside the scale, 1, 2 or 5 times a power of ten apart."""
        raw = (self.high - self.low) / most or 1.0
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def grid_x(canvas: Canvas, scale: Scale, top: float, bottom: float, label: str) -> None:
    """Vertical rules with their values below, and what the axis shows."""
    for value in scale.ticks():
        x = scale(value)
        canvas.line([(x, top), (x, bottom)], "s-rule")
        canvas.text(x, bottom + 9, f"{value:g}", "f-dim", "middle")
    canvas.text((scale.start + scale.end) / 2, bottom + 23, label, "f-dim", "middle")


def grid_y(canvas: Canvas, scale: Scale, left: float, right: float, most: int = 6) -> None:
    """Horizontal rules with their values to the left."""
    ticks = scale.ticks(most)
    rules = "".join(f"M{_px(left)} {_px(scale(value))}H{_px(right)}" for value in ticks)
    canvas.elements.append(f'<path d="{rules}" class="l s-rule"/>')
    for value in ticks:
        canvas.text(left - 5, scale(value), f"{value:g}", "f-dim", "end")


def width_of(words: str) -> float:
    """Estimated width of a label in px."""
    return LETTER * len(words)


def legend(canvas: Canvas, y: float, right: float, entries: Sequence[tuple[str, str]]) -> None:
    """(kind, words) of each colour, in one line that ends at `right`."""
    x = right - sum(width_of(words) + 24 for _, words in entries)
    for kind, words in entries:
        canvas.rect(x, y - 5, 10, 10, kind)
        canvas.text(x + 14, y, words)
        x += width_of(words) + 24


class Box(NamedTuple):
    """The rectangle that a label covers, px."""

    left: float
    top: float
    right: float
    bottom: float

    def covers(self, other: "Box") -> bool:
        """Whether the two share any area."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def within(self, other: "Box") -> bool:
        """Whether the other one holds all of this one."""
        across = other.left <= self.left and self.right <= other.right
        return across and other.top <= self.top and self.bottom <= other.bottom


def place_label(words: str, x: float, y: float, taken: Sequence[Box], inside: Box) -> Box:
    """Where a point's label covers nothing: right or left of it if that is free, else the nearest free height."""
    width = width_of(words)
    steps = sorted((k * LINE / 2 for k in range(-24, 25)), key=abs)
    tried = [
        Box(left, y + dy - LINE / 2, left + width, y + dy + LINE / 2) for dy in steps for left in (x + 8, x - 8 - width)
    ]
    fitting = [box for box in tried if box.within(inside)]
    return next((box for box in fitting if not any(box.covers(other) for other in taken)), (fitting or tried)[0])
