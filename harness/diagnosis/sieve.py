"""Where in a block of text any of some hundred texts may stand, far faster than a line at a time.

Four characters at a time, of 15 classes of letters, are one character of a UTF-16 text; wherever a text begins, one or
two whole units of four lie inside it. One search for a set of characters, which `re` does in a few instructions each,
then looks at every fourth place only, and Python sees a few places in a thousand.
"""

import re
from binascii import unhexlify
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import TypeAlias

from harness.diagnosis.anchors import rarity

LONGEST = 11
"""Characters of a text that are looked for: wherever it begins, two whole units lie in so many."""
_UNIT = 4
_DIGITS = "0123456789abcef"
"""The hex digits of the classes. Without `d`, no unit is half of a surrogate pair."""
_LETTERS = ("e", "tz", "aj", "oq", "ix", "nk", "sv", "ry", "lwb", "dcg", "ufh", "mp", " ")
"""Classes of about equal share; then come all else that a text may hold, and what none holds."""
_ELSE, _NONE = len(_LETTERS), len(_LETTERS) + 1
_RARITY = (*(rarity(letters[0]) - 0.3 * (len(letters) - 1) for letters in _LETTERS), rarity("_"), rarity("_"))
_CLASS = {letter: number for number, letters in enumerate(_LETTERS) for letter in letters}

Unit: TypeAlias = tuple[int | None, ...]
"""Classes of four characters; None: any."""


class Sieve:
    """A compiled set of texts in lower case, none with a digit; a text may begin with a line break."""

    def __init__(self, texts: Collection[str]) -> None:
        self._used = {letter for text in texts for letter in text}
        self._codes = bytes(ord(_DIGITS[self._class(chr(byte).lower())]) for byte in range(256))
        self._parts: dict[str, tuple[bytes, ...]] = {}
        """For each unit that gives a part of a text away, the parts."""
        self._pattern = self._compile(_parts(texts))

    def find(self, text: bytes) -> list[int]:
        """Where the texts, or the rarest parts of them, stand: every line that holds one holds a place."""
        padded = text + b"\0" * (-len(text) % _UNIT)
        units = unhexlify(padded.translate(self._codes)).decode("utf-16-le")
        lower = text.lower()
        places: set[int] = set()
        for match in self._pattern.finditer(units):
            at = _UNIT * match.start()
            near = lower[max(0, at - LONGEST) : at + _UNIT + LONGEST]
            for part in self._parts[match[0]]:
                if part not in near:
                    continue
                # It overlaps this unit. Two can: the end of one and the beginning of the next.
                first, end = max(0, at + 1 - len(part)), at + _UNIT - 1 + len(part)
                places.update((lower.find(part, first, end), lower.rfind(part, first, end)))
        places.discard(-1)
        return sorted(places)

    def _class(self, letter: str) -> int:
        return _CLASS.get(letter, _ELSE if letter in self._used else _NONE)

    def _compile(self, parts: Iterable[str]) -> re.Pattern[str]:
        """A pattern for the rarer of two neighbouring units, with what must stand before or after it."""
        groups: dict[tuple[bool, bool, int], tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
        found: dict[str, set[bytes]] = defaultdict(set)
        for part in parts:
            classes = [self._class(letter) for letter in part]
            any_: Unit = (None,) * _UNIT
            for before in range(_UNIT):
                first, second = _rarest_pair((*any_[:before], *classes, *any_[: -(len(part) + before) % _UNIT]))
                after = _rarity(first) >= _rarity(second)
                rare, other = (first, second) if after else (second, first)
                rares, others = groups[after, *_kind(_known(rare), _known(other))]
                for unit in _spelled(rare):
                    rares.add(unit)
                    found[unit].add(part.encode())
                others.update(_spelled(other) if _kind(_known(rare), _known(other))[1] else ())
        self._parts = {unit: tuple(texts) for unit, texts in found.items()}
        ways = [_way(after, rares, others) for (after, _, _), (rares, others) in groups.items()]
        return re.compile(f"{_any_of(found)}(?:{'|'.join(ways)})")


def _parts(texts: Iterable[str]) -> set[str]:
    """The rarest LONGEST characters of each text; none of a text that holds another's."""
    chosen: set[str] = set()
    for text in sorted(texts, key=len):
        if not any(part in text for part in chosen):
            parts = (text[i : i + LONGEST] for i in range(max(1, len(text) - LONGEST + 1)))
            chosen.add(max(parts, key=rarity))
    return chosen


def _rarest_pair(classes: Sequence[int | None]) -> tuple[Unit, Unit]:
    units: list[Unit] = [tuple(classes[i : i + _UNIT]) for i in range(0, len(classes), _UNIT)]
    units.append((None,) * _UNIT)
    return max(pairwise(units), key=lambda pair: _rarity(pair[0]) + _rarity(pair[1]))


def _rarity(unit: Unit) -> float:
    return sum(_RARITY[number] for number in unit if number is not None)


def _known(unit: Unit) -> int:
    return sum(number is not None for number in unit)


def _kind(known: int, more: int) -> tuple[bool, int]:
    """Which units are looked for together: few kinds, since each is tried; 0: the other one says too little to look."""
    if known == _UNIT:
        return True, min(more, 3) if more > 1 else 0
    return False, min(more, 2)


def _spelled(unit: Unit) -> Iterator[str]:
    """Every unit of four known classes, as the character that it is in the text of units."""
    places = [_DIGITS if number is None else _DIGITS[number] for number in unit]
    return (chr(int(c + d + a + b, 16)) for a, b, c, d in product(*places))


def _way(after: bool, rare: set[str], other: set[str]) -> str:
    if not other:
        return f"(?<={_any_of(rare)})"
    return f"(?<={_any_of(rare)})(?={_any_of(other)})" if after else f"(?<={_any_of(other)}{_any_of(rare)})"


def _any_of(units: Iterable[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(units)))}]"
