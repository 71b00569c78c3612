"""Make any text harmless where it is shown: a log can hold anything: markup, links, terminal codes."""

import html
import re

from harness.diagnosis.reading.text import printable

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$^=:@&\"'%])")
# Directional and invisible characters can make a line read as something else.
_INVISIBLE = re.compile("[\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]")


def plain(text: str) -> str:
    """One line for a terminal or a JSON field: no control, terminal or direction codes, no line breaks."""
    return _INVISIBLE.sub("", printable(text.replace("\t", " ").replace("\n", " ").replace("\r", " ")))


def for_html(text: str) -> str:
    """Text for an HTML element or a quoted attribute; braces too, for pages that a template engine reads again."""
    return html.escape(plain(text), quote=True).replace("{", "&#123;").replace("}", "&#125;").replace("`", "&#96;")


def for_markdown(text: str) -> str:
    """Text for running Markdown or a table cell: every character with a meaning in Markdown as an entity."""
    return _MARKDOWN.sub(lambda m: f"&#{ord(m[1])};", plain(text))
