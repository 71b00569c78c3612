"""Text of others inside our Markdown: inert, yet readable in the raw file too."""

import re

from harness.diagnosis.inert import for_markdown

_FACES = {46: ".", 45: "-", 61: "=", 37: "%", 39: "'", 43: "+", 34: '"', 40: "(", 41: ")", 58: ":", 95: "_"}
"""Characters that are harmless inside a sentence, by their code."""
_ENTITY = re.compile(r"&#(\d+);")


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
