"""A log of any size -> the few lines worth reading, in one pass and bounded memory.

Lines are grouped by shape (the line without its digits). A training log of gigabytes has few shapes,
so each shape is judged once and a line costs one hash; only lines of a telling shape, and the few
lines after them, reach the regular expressions.
"""

import codecs
import gzip
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from harness.diagnosis.unwrap import unwrap

BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 16
"""A longer line is read in pieces of this size."""
WHOLE_FILE_BYTES = 4 << 20
"""Files up to this size are looked at as a whole first, for hard-wrapped text."""
AFTER = 3
"""Lines after a telling line that are read too."""
SHAPES_KEPT = 100_000
EVERY_HIT = 5_000
"""Lines of one shape that are read one by one; beyond, only the last of each block."""
_DIGITS = b"0123456789\x00"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(slots=True)
class Line:
    """One line worth reading."""

    number: int
    raw: bytes
    candidates: tuple[int, ...]
    """Which signatures its shape may match."""
    progress: int
    """Progress lines of the file so far."""


class Shapes(Protocol):
    """Judges a shape once."""

    def judge(self, shape: bytes) -> tuple[int, ...] | None:
        """Candidate signatures of a lower-case shape; () to read the line for its structure; None to skip it."""

    def is_progress(self, shape: bytes) -> bool:
        """Whether lines of that shape show that training goes on."""

    def screen(self, shapes: bytes) -> bool:
        """Whether any of many shapes, joined, can be telling: a cheap first look."""


class Reader:
    """Reads one file; counts lines, bytes and progress on the way."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._telling: dict[bytes, tuple[int, ...]] = {}
        self._progress_shapes: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._hits: dict[bytes, int] = {}
        self._after = 0
        self.lines = 0
        self.progress = 0
        self.binary = False

    def read(self, handle: IO[bytes]) -> Iterator[Line]:
        """Yield the lines worth reading. Raises OSError or EOFError for a damaged compressed file."""
        for numbers, lines in _blocks(handle):
            self.lines = numbers[-1]
            yield from self._block(numbers, lines)

    def _block(self, numbers: Sequence[int], lines: list[bytes]) -> Iterator[Line]:
        shapes = b"\n".join(lines).translate(None, _DIGITS).split(b"\n")
        self._learn(shapes)
        if self._after == 0 and self._telling.keys().isdisjoint(shapes):
            if not self._progress_shapes.isdisjoint(shapes):
                self.progress += sum(map(self._progress_shapes.__contains__, shapes))
            return
        last = {shape: i for i, shape in enumerate(shapes) if shape in self._telling}
        for index, shape in enumerate(shapes):
            candidates = self._telling.get(shape)
            if candidates is not None:
                count = self._hits[shape] = self._hits.get(shape, 0) + 1
                if count > EVERY_HIT and last[shape] != index:
                    continue
                self._after = AFTER
            elif self._after:
                self._after -= 1
            if shape in self._progress_shapes:
                self.progress += 1
            if candidates is not None or self._after:
                yield Line(numbers[index], lines[index], candidates or (), self.progress)

    def _learn(self, shapes: list[bytes]) -> None:
        new = set(shapes) - self._seen
        if not new:
            return
        if len(self._seen) + len(new) > SHAPES_KEPT:
            self._seen.clear()
            self._telling = {s: c for s, c in self._telling.items() if self._hits.get(s)}
        self._seen |= new
        for shape in new:
            if self._shapes.is_progress(shape):
                self._progress_shapes.add(shape)
        if self._shapes.screen(b"\n".join(new).lower()):
            for shape in new:
                candidates = self._shapes.judge(shape.lower())
                if candidates is not None:
                    self._telling[shape] = candidates


def open_log(path: Path) -> IO[bytes]:
    """Open a plain, gzip or zstd file. Raises OSError; ModuleNotFoundError when zstd needs a missing package."""
    handle = path.open("rb")
    return decompress(handle)


def decompress(handle: IO[bytes]) -> IO[bytes]:
    """Look at the first bytes and undo gzip, zstd or UTF-16."""
    buffered = handle if hasattr(handle, "peek") else io.BufferedReader(handle)  # type: ignore[type-var, arg-type]
    head = buffered.peek(4096)[:4096]
    if head[:2] == b"\x1f\x8b":
        return decompress(cast(IO[bytes], gzip.GzipFile(fileobj=buffered)))
    if head[:4] == _ZSTD_MAGIC:
        return decompress(_zstd(buffered))
    encoding = _wide_encoding(head)
    return cast(IO[bytes], _Recoded(buffered, encoding)) if encoding else buffered


def _zstd(handle: IO[bytes]) -> IO[bytes]:
    import zstandard

    return cast(
        IO[bytes], io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(handle, read_across_frames=True))
    )


def _wide_encoding(head: bytes) -> str | None:
    """UTF-16 by its mark, or by every other byte being NUL."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if len(head) >= 64:
        even, odd = head[0:512:2].count(0), head[1:512:2].count(0)
        half = len(head[:512]) // 2
        if odd > 0.9 * half and even == 0:
            return "utf-16-le"
        if even > 0.9 * half and odd == 0:
            return "utf-16-be"
    return None


class _Recoded(io.RawIOBase):
    """A UTF-16 stream read as UTF-8."""

    def __init__(self, handle: IO[bytes], encoding: str) -> None:
        self._handle = handle
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._handle.read(size)
        return self._decoder.decode(data, final=not data).encode("utf-8", "replace")


def _blocks(handle: IO[bytes]) -> Iterator[tuple[Sequence[int], list[bytes]]]:
    """Yield (line numbers, lines). Carriage returns split a line; the parts share its number."""
    first = _read_up_to(handle, WHOLE_FILE_BYTES)
    if len(first) < WHOLE_FILE_BYTES:
        if first:
            yield _split(1, first.removesuffix(b"\n"), whole=True)
        return
    number, carry, data = 1, b"", first
    while data:
        data = carry + data
        cut = data.rfind(b"\n")
        if cut < 0 and len(data) >= BLOCK_BYTES:
            yield _split(number, data, whole=False)
            carry = b""
        elif cut < 0:
            carry = data
        else:
            carry = data[cut + 1 :]
            yield _split(number, data[:cut], whole=False)
            number += data.count(b"\n", 0, cut + 1)
        data = handle.read(BLOCK_BYTES)
    if carry:
        yield _split(number, carry, whole=False)


def _read_up_to(handle: IO[bytes], size: int) -> bytes:
    parts, left = [], size
    while left > 0 and (data := handle.read(left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def _split(number: int, data: bytes, *, whole: bool) -> tuple[Sequence[int], list[bytes]]:
    numbers: Sequence[int]
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    lines = data.split(b"\n")
    numbers = range(number, number + len(lines))
    if b"\r" in data:
        numbers, lines = _flatten((n, line.split(b"\r")) for n, line in zip(numbers, lines, strict=True))
    if any(len(line) > LONGEST_LINE_BYTES for line in lines):
        numbers, lines = _flatten((n, _pieces(line)) for n, line in zip(numbers, lines, strict=True))
    if whole:
        numbers, lines = unwrap(numbers, lines)
    return numbers, lines


def _flatten(parts: Iterable[tuple[int, list[bytes]]]) -> tuple[list[int], list[bytes]]:
    numbers, lines = [], []
    for number, pieces in parts:
        numbers += [number] * len(pieces)
        lines += pieces
    return numbers, lines


def _pieces(line: bytes) -> list[bytes]:
    """A long line in overlapping pieces, so that no message is cut in all of them."""
    step = LONGEST_LINE_BYTES - 1024
    return [line[i : i + LONGEST_LINE_BYTES] for i in range(0, max(1, len(line) - 1024), step)]


PROGRESS = re.compile(
    rb"(?i)(?:\b(?:step|iter(?:ation)?|epoch|batch|global[_ ]step|loss|lr|tokens?)\b[^a-z]{0,12}.*"
    rb"\b(?:loss|lr|time|it/s|s/it|tok\w*|grad\w*|mfu|samples)\b|(?:it/s|s/it)[\],]|[\"']loss[\"']: )"
)
"""A line that shows training going on, digits removed."""
