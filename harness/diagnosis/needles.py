"""Derive, from a pattern, literal texts of which every match must hold one: a cheap test before the pattern.

Lines are pre-sorted by their shape, lower case and without digits, so the needles are too.
"""

from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

SHORTEST = 3
"""A shorter needle would be in every other line."""
COMMON = frozenset(
    {"loss", "grad", "step", "training", "warning", "reason:", "completed", "deepspeed", "connection", "detected",
     "encountered", "terminated", "waiting", "hardware", "argument", "environment variable", "does not exist", "error",
     "client socket has", "nccl warn", "huggingface", "skipp", "termination"}
)  # fmt: skip
"""Texts of healthy logs: a needle only where a pattern has no better one."""


def needles(pattern: str) -> tuple[str, ...]:
    """The needles of a pattern. Raises ValueError when a way to match it needs no literal of SHORTEST letters."""
    found = _best(_parser.parse(pattern))
    if found is None:
        raise ValueError(f"pattern {pattern!r}: every alternative needs {SHORTEST} literal characters in a row")
    return tuple(sorted(found))


def _best(items: Any) -> set[str] | None:
    """Of all sets of texts that a sequence makes necessary, the one whose shortest text is longest."""
    options: list[set[str]] = []
    run = ""
    for op, argument in items:
        letter = _letter(op, argument)
        if letter is not None:
            run += letter
            continue
        inner = _inner(op, argument)
        if inner is not None:
            options.append(inner)
        options.append({run})
        run = ""
    options.append({run})
    options = [o for o in options if o and all(len(t.strip()) >= SHORTEST for t in o)]
    return max(options, key=lambda o: (not any(t.strip() in COMMON for t in o), min(map(len, o))), default=None)


def _inner(op: Any, argument: Any) -> set[str] | None:
    if op is sre.SUBPATTERN:
        return _best(argument[3])
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT) and argument[0] >= 1:
        return _best(argument[2])
    if op is sre.BRANCH:
        parts = [_best(branch) for branch in argument[1]]
        return set().union(*(p for p in parts if p)) if all(parts) else None
    return None


def _letter(op: Any, argument: Any) -> str | None:
    """What an item adds to a literal run: a letter, "" (digits, zero-width checks), or None: it ends the run."""
    if op is sre.LITERAL:
        character = chr(argument).lower()
        return "" if character.isdigit() else character
    if op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
        return ""
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        inner = [_letter(*item) for item in argument[2]]
        return "" if all(letter == "" for letter in inner) else None
    if op is sre.IN:
        if argument == [(sre.CATEGORY, sre.CATEGORY_DIGIT)]:
            return ""
        letters = {chr(a).lower() for o, a in argument if o is sre.LITERAL}
        if len(letters) == 1 and all(o is sre.LITERAL for o, _ in argument):
            return letters.pop()
    return None
