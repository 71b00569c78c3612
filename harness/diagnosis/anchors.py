"""Derive, from a pattern, rare texts of which every match holds one: what a whole block is searched for.

Needles test one shape, without its digits; anchors are looked for in raw text, so a digit ends them.
"""

from functools import cache
from itertools import product
from math import log
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from harness.diagnosis.needles import COMMON

SHORTEST = 4
"""A shorter anchor would be in every other line."""
_MOST_VARIANTS = 40
_SHARE = dict(zip("etaoinsrhldcumfpgwybvkxjqz ", (
    11, 9, 8, 7.5, 7, 7, 6.5, 6.5, 4, 4.5, 4, 4, 3, 3, 2, 3, 2, 1.8, 1.7, 1.5, 1, 0.8, 0.3, 0.2, 0.1, 0.1, 15,
), strict=True))  # fmt: skip


@cache
def anchors(pattern: str) -> frozenset[str]:
    """The anchors of a pattern, in lower case. Raises ValueError when a match may hold no SHORTEST letters in a row."""
    found = _best(_parser.parse(pattern))
    if found is None:
        raise ValueError(f"pattern {pattern!r}: every alternative needs {SHORTEST} characters in a row without a digit")
    return frozenset(text for text in found if not any(other in text for other in found - {text}))


def rarity(text: str) -> float:
    """How rare a text is by its letters alone: more is rarer."""
    # Half English, half chance: logs hold both sentences and hashes.
    letters = -sum(log(0.5 * _SHARE.get(c, 1) / 115 + 0.5 / 30) for c in text)
    return letters / 2 if text.strip() in COMMON else letters


def _best(items: Any) -> set[str] | None:
    """Of all sets of texts that a sequence makes necessary, the one that is rarest as a whole."""
    options: list[set[str]] = []
    runs = {""}
    for op, argument in items:
        variants = _variants(op, argument)
        if variants is not None and len(runs) * len(variants) <= _MOST_VARIANTS:
            runs = {a + b for a, b in product(runs, variants)}
            continue
        options.append(runs)
        runs = variants if variants is not None else {""}
        inner = _inner(op, argument)
        if inner is not None:
            options.append(inner)
    options.append(runs)
    options = [o for o in options if all(len(text) >= SHORTEST and text.strip() for text in o)]
    return max(options, key=lambda o: min(map(rarity, o)) - log(len(o)), default=None)


def _inner(op: Any, argument: Any) -> set[str] | None:
    if op is sre.SUBPATTERN:
        return _best(argument[3])
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT) and argument[0] >= 1:
        return _best(argument[2])
    if op is sre.BRANCH:
        parts = [_best(branch) for branch in argument[1]]
        return set().union(*(p for p in parts if p)) if all(parts) else None
    return None


def _variants(op: Any, argument: Any) -> set[str] | None:
    """All texts that an item can match, in lower case, when they are few and hold no digit; else None."""
    if op is sre.LITERAL:
        character = chr(argument).lower()
        return None if character.isdigit() else {character}
    if op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
        return {""}
    if op is sre.IN and all(o is sre.LITERAL for o, _ in argument):
        letters = {chr(a).lower() for _, a in argument}
        return None if any(map(str.isdigit, letters)) else letters
    if op is sre.SUBPATTERN:
        return _sequence(argument[3])
    if op is sre.BRANCH:
        branches = [_sequence(branch) for branch in argument[1]]
        return None if None in branches else set().union(*(b for b in branches if b))
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT) and argument[:2] == (0, 1):
        inner = _sequence(argument[2])
        return None if inner is None else inner | {""}
    return None


def _sequence(items: Any) -> set[str] | None:
    texts = {""}
    for op, argument in items:
        variants = _variants(op, argument)
        if variants is None or len(texts) * len(variants) > _MOST_VARIANTS:
            return None
        texts = {a + b for a, b in product(texts, variants)}
    return texts
