"""Find the few lines worth reading, fast enough for gigabytes.

A line's shape is the line in lower case without its digits. A training log has few shapes, so a shape is judged once
and every further line of it costs one hash. A new shape is searched for the needles of all signatures at once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.diagnosis.reading.stream import Block, Lines

AFTER = 3
"""Lines read after a structural one, because the last line of a traceback may hold no needle."""
EVERY_HIT = 12_000
"""Lines of one shape read one by one (one for each of 10,000 ranks); after that, only the last one of each block."""
WITH_AFTER = 500
"""Lines of one shape after which the next lines are read too."""
ALL_HITS = 50_000
"""After this many lines, only EVERY_HIT_LATER lines of each new shape are read."""
EVERY_HIT_LATER = 20
KIND_LATER = 1_000
"""And this many lines of all new shapes with the same needles, so that errors that never repeat do not take hours."""
SHAPES_KEPT = 50_000
MOSTLY = 0.5
"""With a larger share of new shapes in a block, shapes are no longer remembered."""
_LOWER = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
_DIGITS = b"0123456789\x00"
_LONGEST_SHAPE_BYTES = 4096
NOISE = b"nccl info"
"""Shapes with this text are evidence of nothing, whatever else is in them."""
MOVING = (b"it/s", b"s/it", b"loss", b"step", b"iter", b"epoch")
"""Needles of progress lines."""

Find = Callable[[bytes], Iterable[tuple[int, int]]]
"""From a text to (which needle, where it starts), line after line, overlapping needles included."""


@dataclass(slots=True)
class Line:
    """One line worth reading."""

    number: int
    raw: bytes
    candidates: tuple[int, ...]
    """Which signatures it may match, in the order of the table."""
    progress: int
    """Progress lines of the file so far."""


def finder(needles: Sequence[bytes]) -> Find:
    """Search for all needles at once: with ahocorasick_rs when it is installed, which is ten times as fast."""
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ModuleNotFoundError:
        return plain_finder(needles)
    automaton = BytesAhoCorasick(needles, implementation=Implementation.DFA)
    return lambda text: ((w, start) for w, start, _ in automaton.find_matches_as_indexes(text, overlapping=True))


def plain_finder(needles: Sequence[bytes]) -> Find:
    """The same answers from the standard library: `re` finds the lines, then every needle is tried on each."""
    pattern = re.compile(_trie(needles))

    def find(text: bytes) -> Iterator[tuple[int, int]]:
        end = -1
        for match in pattern.finditer(text):
            if match.start() > end:
                start, end = _line_around(text, match.start())
                line = text[start:end]
                yield from ((which, match.start()) for which, needle in enumerate(needles) if needle in line)

    return find


def _trie(texts: Iterable[bytes]) -> bytes:
    """A pattern that finds any of the texts; it tries shared beginnings once, which plain alternatives do not."""
    branches: dict[bytes, list[bytes]] = {}
    for text in texts:
        branches.setdefault(text[:1], []).append(text[1:])
    parts = (re.escape(first) + (b"" if b"" in rest else _trie(rest)) for first, rest in branches.items())
    return b"(?:" + b"|".join(parts) + b")"


def _line_around(text: bytes, place: int) -> tuple[int, int]:
    end = text.find(b"\n", place)
    return text.rfind(b"\n", 0, place) + 1, len(text) if end < 0 else end


def shape_of(text: bytes) -> bytes:
    """Text in lower case without digits."""
    return text.translate(_LOWER, _DIGITS)


class Vocabulary:
    """All needles, and the signatures of each."""

    def __init__(
        self,
        needles: Iterable[tuple[str, int]],
        structure: Iterable[str],
        make: Callable[[Sequence[bytes]], Find] = finder,
    ) -> None:
        meaning: dict[bytes, set[int]] = {needle: set() for needle in MOVING}
        for text, index in [*needles, *((s, -1 - i) for i, s in enumerate(structure))]:
            meaning.setdefault(text.encode(), set()).add(index)
        self._meaning = list(meaning.values())
        self._find = make(list(meaning))

    def telling(self, text: bytes) -> Iterator[tuple[bytes, tuple[int, ...] | None]]:
        """Shapes (lines of a text) with a needle, and its signature (below 0: structure; None: progress only)."""
        start, end, found = 0, -1, set[int]()
        for which, place in self._find(text):
            if place > end:
                if end >= 0:
                    yield _judged(text[start:end], found)
                start, end = _line_around(text, place)
                found = set()
            found |= self._meaning[which]
        if end >= 0:
            yield _judged(text[start:end], found)


def _judged(shape: bytes, found: set[int]) -> tuple[bytes, tuple[int, ...] | None]:
    return shape, tuple(sorted(found)) if found and NOISE not in shape else None


class Triage:
    """State of one file."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._telling: dict[bytes, tuple[int, ...]] = {}
        self._progress: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._hits: dict[bytes, int] = {}
        self._kinds: dict[tuple[int, ...], int] = {}
        self._novel = False
        """Most shapes of the last block were new, so searching every line is cheaper than remembering them."""
        self._after = 0
        self._read = 0
        self.progress = 0

    def lines(self, block: Block) -> Iterator[Line]:
        """The lines of a block that are worth reading."""
        found = block.lines()
        text = shape_of(found.text)
        if len(self._telling) > SHAPES_KEPT:
            for kept in (self._telling, self._progress, self._seen, self._hits):
                kept.clear()
        shapes = text.split(b"\n")
        if self._novel:
            distinct = self._learn(text)
            self._novel = len(distinct) <= MOSTLY * len(shapes)
        else:
            distinct = set(shapes)
            new = distinct - self._seen
            self._novel = len(new) > MOSTLY * len(shapes) and not block.whole
            if len(self._seen) + len(new) > SHAPES_KEPT:
                self._seen.clear()
            if not self._novel:
                self._seen |= {s for s in new if len(s) <= _LONGEST_SHAPE_BYTES}
            if new:
                self._learn(b"\n".join(new))
        telling = self._telling.keys() & distinct
        moving = self._progress & distinct
        if not telling and not self._after:
            if moving:
                self.progress += sum(map(moving.__contains__, shapes))
            return
        yield from self._wanted(found, shapes, self._choose(shapes, telling), moving)

    def _choose(self, shapes: list[bytes], telling: set[bytes]) -> list[int]:
        """Indices of the lines to read, thinned where one shape repeats endlessly."""
        spent = {shape for shape in telling if self._hits.get(shape, 0) >= self._enough()}
        fresh = telling - spent
        last: dict[object, int] = dict(zip(shapes, range(len(shapes)), strict=True)) if spent else {}
        chosen = {last[shape] for shape in spent}
        last.clear()
        for index in [i for i, shape in enumerate(shapes) if shape in fresh]:
            shape = shapes[index]
            count = self._hits[shape] = self._hits.get(shape, 0) + 1
            kind = self._telling[shape]
            if count > self._enough():
                last[shape] = index
            elif self._read >= ALL_HITS and self._kinds.get(kind, 0) >= KIND_LATER:
                last[kind] = index
            else:
                self._kinds[kind] = self._kinds.get(kind, 0) + (self._read >= ALL_HITS)
                self._read += 1
                chosen.add(index)
        return sorted(chosen.union(last.values()))

    def _enough(self) -> int:
        return EVERY_HIT if self._read < ALL_HITS else EVERY_HIT_LATER

    def _wanted(self, found: Lines, shapes: list[bytes], wanted: list[int], moving: set[bytes]) -> Iterator[Line]:
        position = 0
        for start in [-1, *wanted]:
            # From one line to read (or from the block's start, after one in the block before) to the next.
            if start >= 0:
                self.progress += sum(map(moving.__contains__, shapes[position : start + 1])) if moving else 0
                position = start + 1
                told = self._telling[shapes[start]]
                candidates = tuple(index for index in told if index >= 0)
                self._after = AFTER if told[0] < 0 and self._hits[shapes[start]] <= WITH_AFTER else 0
                yield Line(found.numbers[start], found.lines[start], candidates, self.progress)
            while self._after and position < len(shapes) and shapes[position] not in self._telling:
                self.progress += shapes[position] in moving
                self._after -= 1
                yield Line(found.numbers[position], found.lines[position], (), self.progress)
                position += 1
        if moving:
            self.progress += sum(map(moving.__contains__, shapes[position:]))

    def _learn(self, text: bytes) -> set[bytes]:
        """Judge shapes, the lines of a text; returns those that hold a needle."""
        found = set()
        for shape, candidates in self._vocabulary.telling(text):
            found.add(shape)
            if candidates is not None:
                self._telling[shape] = candidates
            if shows_progress(shape):
                self._progress.add(shape)
        return found


def shows_progress(shape: bytes) -> bool:
    """Whether lines of a shape show that training goes on: a loss with a step, or a progress bar's speed."""
    if len(shape) > 1000:
        return False
    if b"it/s" in shape or b"s/it" in shape:
        return b"%" in shape or b"loss" in shape
    if b"loss" in shape:
        return any(word in shape for word in (b"step", b"iter", b"epoch", b"lr", b"learning", b"time"))
    return shape.startswith((b"step ", b"iteration ", b"iter ", b"epoch "))
