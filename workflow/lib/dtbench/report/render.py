"""Templates and the few ways they may format a value."""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from dtbench.report.inert import markdown
from harness.diagnosis.inert import for_html

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
DAGGER = "\u2020"
NONE = "-"


def fixed(value: float | None, digits: int, unit: str = "") -> str:
    """A number with so many decimals; a hyphen when there is none."""
    return NONE if value is None else f"{value:.{digits}f}{unit}"


def whole(value: int | None) -> str:
    """A count; a hyphen when there is none."""
    return NONE if value is None else str(value)


def speed(value: float | None) -> str:
    """Tokens per second, with a decimal below 100."""
    if value is None:
        return NONE
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _md(text: Any) -> str:
    return markdown(str(text))


def _inert(text: Any) -> Markup:
    return Markup(for_html(str(text)))


def _svg(text: str) -> Markup:
    """A figure of ours as an element of the page: without the XML prologue."""
    return Markup(text[text.index("<svg") :])


def render(template: str, context: dict[str, Any]) -> str:
    """Fill a template of workflow/templates; HTML is escaped, Markdown escapes what is not our own text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"fixed": fixed, "whole": whole, "speed": speed, "md": _md, "inert": _inert, "svg": _svg}
    return environment.get_template(template).render(context | {"dagger": DAGGER})
