"""Templates and the few ways they may format a value."""

import os
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from harness.diagnosis.inert import for_html, for_markdown

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
DAGGER = "\u2020"
NONE = "-"
_FACES = {46: ".", 45: "-", 61: "=", 37: "%", 39: "'", 43: "+", 34: '"', 40: "(", 41: ")", 58: ":", 95: "_"}
"""Characters that are harmless inside a sentence, by their code."""
_CODE = re.compile("&#96;(.+?)&#96;")
_ENTITY = re.compile(r"&#(\d+);")


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


def _prose(text: str) -> Markup:
    """A sentence of ours in HTML: what stands in backticks becomes code."""
    return Markup(_CODE.sub(r"<code>\1</code>", for_html(text)))


def _compiled() -> jinja2.BytecodeCache | None:
    """Compiled templates beside their sources, as Python keeps its own: compiling takes longer than filling them."""
    folder = TEMPLATES / "__pycache__"
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return None
    return jinja2.FileSystemBytecodeCache(str(folder)) if os.access(folder, os.W_OK) else None


def render(template: str, context: dict[str, Any]) -> str:
    """Fill a template of workflow/templates; HTML is escaped, Markdown escapes what is not our own text."""
    html = template.endswith(".html.j2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=_compiled(),
    )
    prose = _prose if html else str
    environment.filters |= {"fixed": fixed, "whole": whole, "speed": speed, "svg": Markup, "prose": prose}
    environment.filters["text"] = (lambda text: Markup(for_html(str(text)))) if html else (lambda t: markdown(str(t)))
    environment.filters["codes"] = lambda names: prose(", ".join(f"`{name}`" for name in names))
    return environment.get_template(template).render(context | {"dagger": DAGGER})


def markdown(text: str) -> str:
    """Escape text for a Markdown list item or table cell.

    `for_markdown` escapes every mark. Brackets, pipes, backticks, asterisks and angle brackets stay so; a dot, a
    hyphen or a colon gets its own face back unless it could start a list, a link or an emoji. There a colon or a dot
    in a sentence gets a backslash, `https\\://`, which is as inert and can be read.
    """
    escaped = for_markdown(text)

    def back(match: re.Match[str]) -> str:
        face = _FACES.get(int(match[1]))
        before, after = escaped[: match.start()][-40:], escaped[match.end() : match.end() + 1]
        if face is not None and _harmless(face, before, after):
            return face
        return f"\\{face}" if face in (":", ".") and before and not before.isdigit() else match[0]

    return _ENTITY.sub(back, escaped)


def _harmless(face: str, before: str, after: str) -> bool:
    if not before or (before.isdigit() and after == " "):
        return False
    match face:
        case ":":
            closes_emoji = re.search(r"&#58;[\w+-]+$", before) is not None
            return (after in ("", " ") or after.isdigit()) and not closes_emoji
        case "_":
            return before[-1].isalnum() and after.isalnum()
        case ".":
            return before[-3:].lower() != "www"
        case _:
            return True
