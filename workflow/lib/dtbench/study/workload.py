"""What a cell trains, and by which numerics: only cells that are alike in both are compared."""

from typing import Any

WORDS = {"micro_batch": "micro-batch", "sequence_length": "sequence", "name": "model"}
"""Key of a spec -> how the report calls it, where that is not the key with spaces."""


def departures(usual: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Section -> where a spec differs from what the study says for its arm, as words for a table.

    Both are the plain sections of a spec: `usual` before the study's overrides, `found` after them. Other data, model,
    numerics or optimizer make a comparison another one; settings and variables are what a study compares.
    """
    said = {}
    for section in ("data", "model", "numerics", "optimizer"):
        changed = [key for key in found[section] if found[section][key] != usual[section].get(key)]
        said[section] = tuple(_word(key, found[section][key]) for key in changed if key != "config")
    settings, before = found["engine"]["settings"], usual["engine"]["settings"]
    said["engine"] = tuple(_word(key, value) for key, value in settings.items() if value != before.get(key))
    variables = usual["environment"]
    said["environment"] = tuple(f"{k}={v}" for k, v in found["environment"].items() if variables.get(k) != v)
    return said


def _word(key: str, value: Any) -> str:
    word = WORDS.get(key, key.replace("_", " "))
    if isinstance(value, bool):
        return word if value else f"no {word}"
    return f"{word} {value}"
