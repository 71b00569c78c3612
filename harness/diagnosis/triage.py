"""Find the few lines worth reading, fast enough for gigabytes.

A line's shape is the line in lower case without its digits. A training log has few shapes, so a shape
is judged once and a line costs one hash. A new shape is judged by its words: a word is looked at once,
too, and only shapes with a telling word are tried against the needles of the signatures. A block whose
lines are mostly of new shapes goes through a sieve first, and only the lines near what that holds back are looked at.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from harness.diagnosis.sieve import Sieve
from harness.diagnosis.stream import Block, Lines

AFTER = 3
"""Lines after a telling line that are read too: the end of a traceback, the rest of a message."""
EVERY_HIT = 12_000
"""Lines of one shape that are read one by one: one line of each of 10,000 ranks. Beyond, the last of each block."""
WITH_AFTER = 500
"""Telling lines of one shape whose following lines are read too."""
ALL_HITS = 50_000
"""Once so many lines were read, EVERY_HIT_LATER lines of each further shape must do."""
EVERY_HIT_LATER = 20
KIND_LATER = 1_000
"""And so many lines of all further shapes that hold the same needles: errors that never repeat are read to no end."""
SHAPES_KEPT = 50_000
WORDS_KEPT = 200_000
_LOWER = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
_DIGITS = b"0123456789\x00"
_LONGEST_SHAPE_BYTES = 4096
FEW_WORDS = 25
"""Up to so many telling words are searched for one by one, which is faster than splitting every shape."""
NOISE = (b"nccl info",)
"""Shapes with this say nothing about an end, whatever else is in them."""
_MOVING = (b"it/s", b"s/it", b"loss", b"step", b"iter", b"epoch")
"""Words without which no shape shows progress."""
MOVING_ANCHORS = ("it/s", "s/it", "loss", "\nstep ", "\niteration ", "\niter ", "\nepoch ")
"""The same for the sieve: where a line begins with it, a line break does."""
SIFTED_BYTES = 1 << 18
"""So much text of new shapes goes through the sieve first; below, building it (0.2 s, once) does not pay."""
MOSTLY = 0.5
"""Share of a block's lines: with more new shapes the next blocks are sifted whole; with more held back, no longer."""


@dataclass(slots=True)
class Line:
    """One line worth reading."""

    number: int
    raw: bytes
    candidates: tuple[int, ...]
    """Which signatures it may match, in the order of the table."""
    progress: int
    """Progress lines of the file so far."""


class Vocabulary:
    """Needles, and for every needle the word that gives it away."""

    def __init__(self, needles: Iterable[tuple[str, int]], structure: Iterable[str]) -> None:
        self._needles: dict[bytes, list[tuple[bytes, int]]] = {gate: [] for gate in _MOVING}
        for text, index in [*needles, *((s, -1 - i) for i, s in enumerate(structure))]:
            word = max(text.split(), key=len).encode()
            self._needles.setdefault(word, []).append((text.encode(), index))
        self._any_gate = re.compile(_trie(self._needles))
        self._words: dict[bytes, tuple[bytes, ...]] = {}
        """Telling words seen so far, each with the gates in it."""
        self._plain: set[bytes] = set()

    def telling(self, shapes: set[bytes]) -> Iterator[tuple[bytes, tuple[int, ...] | None]]:
        """Shapes with a telling word: what its needles stand for (below 0: structure), or None for mere progress."""
        joined = b"\n".join(shapes)
        words = set(joined.split())
        if len(self._words) > WORDS_KEPT:
            self._words.clear()
        self._sort_out(words.difference(self._plain, self._words))
        present = self._words.keys() & words
        if not present:
            return
        if len(present) <= FEW_WORDS:
            chosen: Iterable[bytes] = {line for word in present for line in _lines_with(word, joined)}
        else:
            chosen = (s for s in shapes if not present.isdisjoint(s.split()))
        for shape in chosen:
            yield shape, self._candidates(shape)

    def _candidates(self, shape: bytes) -> tuple[int, ...] | None:
        if any(noise in shape for noise in NOISE):
            return None
        gates = {gate for word in self._words.keys() & set(shape.split()) for gate in self._words[word]}
        found = {index for gate in gates for needle, index in self._needles[gate] if needle in shape}
        return tuple(sorted(found)) if found else None

    def _sort_out(self, new: set[bytes]) -> None:
        if not new:
            return
        if len(self._plain) + len(new) > WORDS_KEPT:
            self._plain.clear()
        joined = b" ".join(new)
        telling: dict[bytes, tuple[bytes, ...]] = {}
        match = self._any_gate.search(joined)
        while match:
            end = joined.find(b" ", match.end())
            end = len(joined) if end < 0 else end
            word = joined[joined.rfind(b" ", 0, match.start()) + 1 : end]
            telling[word] = tuple(gate for gate in self._needles if gate in word)
            match = self._any_gate.search(joined, end)
        self._words.update(telling)
        self._plain |= new - telling.keys()


class Triage:
    """State of one file. `sieve` gives the sieve of the vocabulary's texts when it is first needed."""

    def __init__(self, vocabulary: Vocabulary, sieve: Callable[[], Sieve]) -> None:
        self._vocabulary, self._sieve = vocabulary, sieve
        self._sifting = False
        self._telling: dict[bytes, tuple[int, ...]] = {}
        self._progress: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._hits: dict[bytes, int] = {}
        self._kinds: dict[tuple[int, ...], int] = {}
        self._after = 0
        self._read = 0
        self.progress = 0

    def lines(self, block: Block) -> Iterator[Line]:
        """The lines of a block that are worth reading."""
        sifted = self._sifting
        if sifted:
            found = block.around(_starts(self._sieve(), block.text), AFTER)
            self._sifting = len(found.lines) <= MOSTLY * block.text.count(b"\n")
        else:
            found = block.lines()
        shapes = b"\n".join(found.lines).translate(_LOWER, _DIGITS).split(b"\n")
        distinct = set(shapes)
        if len(self._telling) > SHAPES_KEPT:
            for kept in (self._telling, self._progress, self._seen, self._hits):
                kept.clear()
        new = distinct - self._seen
        if not sifted and len(new) > MOSTLY * len(shapes) and len(block.text) > SIFTED_BYTES and not block.whole:
            self._sifting = True
        self._learn(new, sifted)
        telling = self._telling.keys() & distinct
        moving = self._progress & distinct
        if not telling and not self._after:
            if moving:
                self.progress += sum(map(moving.__contains__, shapes))
            return
        yield from self._wanted(found, shapes, self._choose(shapes, telling), moving)

    def _choose(self, shapes: list[bytes], telling: set[bytes]) -> list[int]:
        """Indices of the telling lines, thinned where one shape repeats without end."""
        spent = {shape for shape in telling if self._hits.get(shape, 0) >= self._enough()}
        fresh = telling - spent
        last: dict[object, int] = dict(zip(shapes, range(len(shapes)), strict=True)) if spent else {}
        chosen = {last[shape] for shape in spent}
        last.clear()
        for index in (i for i, shape in enumerate(shapes) if shape in fresh) if fresh else ():
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
            # From a telling line (or from the block's start, after one in the block before) on to the next.
            if start >= 0:
                self.progress += sum(map(moving.__contains__, shapes[position : start + 1])) if moving else 0
                position = start + 1
                self._after = AFTER if self._hits[shapes[start]] <= WITH_AFTER else 0
                candidates = tuple(index for index in self._telling[shapes[start]] if index >= 0)
                yield Line(found.numbers[start], found.lines[start], candidates, self.progress)
            while self._after and position < len(shapes) and shapes[position] not in self._telling:
                self.progress += shapes[position] in moving
                self._after -= 1
                yield Line(found.numbers[position], found.lines[position], (), self.progress)
                position += 1
        if moving:
            self.progress += sum(map(moving.__contains__, shapes[position:]))

    def _learn(self, new: set[bytes], sifted: bool) -> None:
        if not new:
            return
        if len(self._seen) + len(new) > SHAPES_KEPT:
            self._seen.clear()
        self._seen |= {s for s in new if len(s) <= _LONGEST_SHAPE_BYTES}
        if not sifted and len(joined := b"\n".join(new)) > SIFTED_BYTES:
            new = {_line_at(joined, start) for start in _starts(self._sieve(), joined)}
        for shape, candidates in self._vocabulary.telling(new):
            if candidates is not None:
                self._telling[shape] = candidates
            if shows_progress(shape):
                self._progress.add(shape)


def _trie(texts: Iterable[bytes]) -> bytes:
    """A pattern that finds any of the texts: shared beginnings are tried once, which alternatives alone are not."""
    branches: dict[bytes, list[bytes]] = {}
    for text in texts:
        branches.setdefault(text[:1], []).append(text[1:])
    parts = (re.escape(first) + (b"" if b"" in rest else _trie(rest)) for first, rest in branches.items())
    return b"(?:" + b"|".join(parts) + b")"


def _starts(sieve: Sieve, text: bytes) -> list[int]:
    """Where something stands in a text that the sieve holds back: always inside of a line."""
    # The break before the text lets what begins a line begin its first one, too.
    places = sieve.find(b"\n" + text)
    return [place if text[place - 1 : place] == b"\n" or not place else place - 1 for place in places]


def _line_at(text: bytes, place: int) -> bytes:
    end = text.find(b"\n", place)
    return text[text.rfind(b"\n", 0, place) + 1 : end if end >= 0 else len(text)]


def _lines_with(word: bytes, text: bytes) -> Iterator[bytes]:
    at = text.find(word)
    while at >= 0:
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        yield text[text.rfind(b"\n", 0, at) + 1 : end]
        at = text.find(word, end)


def shows_progress(shape: bytes) -> bool:
    """Whether lines of a shape show that training goes on: a loss with a step, or a progress bar's speed."""
    if len(shape) > 1000:
        return False
    if b"it/s" in shape or b"s/it" in shape:
        return b"%" in shape or b"loss" in shape
    if b"loss" in shape:
        return any(word in shape for word in (b"step", b"iter", b"epoch", b"lr", b"learning", b"time"))
    return shape.startswith((b"step ", b"iteration ", b"iter ", b"epoch "))
