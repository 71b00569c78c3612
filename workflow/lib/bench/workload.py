"""What a cell trains, and by which numerics: only cells that are alike in both are compared."""

from typing import Any

WORDS = {"micro_batch": "micro-batch", "sequence_length": "sequence", "name": "model"}
"""Key of a spec -> how the report calls it, where that is not the key with spaces."""


def departures(usual: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Section -> where a spec differs from what the study says for its arm, as words for a table.

    Both are the plain sections of a spec: `usual` before the study's overrides, `found` after them. Only sections that
    make a comparison another one are looked at; settings of the engine are what a study compares.
    """
    said = {}
    for section in ("data", "model", "numerics", "optimizer"):
        changed = [key for key in found[section] if found[section][key] != usual[section].get(key)]
        said[section] = tuple(_word(section, key, found[section][key]) for key in changed if key != "config")
    return said


def _word(section: str, key: str, value: Any) -> str:
    word = WORDS.get(key, key.replace("_", " "))
    if isinstance(value, bool):
        return word if value else f"no {word}"
    return f"{word} {value}"
