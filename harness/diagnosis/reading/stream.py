"""Open a log of any kind and read it in blocks of whole lines: gzip, zstd, UTF-16, one endless line."""

import codecs
import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import IO, cast

from harness.diagnosis.reading.text import strip_common, unwrap

BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 16
"""A longer line is read in overlapping pieces."""
_PIECE_BYTES = 1 << 13
WHOLE_FILE_BYTES = 4 << 20
"""Files up to this size are first checked as a whole for hard-wrapped text."""
MOST_LAYERS = 3
"""Depth of compressed files inside compressed files; some archives contain themselves."""
BINARY_LOOK_BYTES = 1 << 16
BINARY_SHARE = 0.05
"""A file with a larger share of control characters is binary: random bytes hold 10%, a damaged log far less."""
_OVERLAP_BYTES = 1024
_STEP = _PIECE_BYTES - _OVERLAP_BYTES
_NO_TEXT = bytes({*range(1, 32)} - set(b"\b\t\n\v\f\r\x1b"))
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_TO_LINES = bytes.maketrans(b"\r", b"\n")


class Block:
    """Some lines. A carriage return ends a line too; the parts share the number of the whole."""

    def __init__(self, first: int, data: bytes, *, whole: bool = False) -> None:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if b"\0" in data:
            data = data.replace(b"\0", b"")
        self._first, self._data = first, data
        self.text = data.translate(_TO_LINES) if b"\r" in data else data
        """The whole text, every line ended by a line break."""
        self.last = first + data.count(b"\n")
        self.whole = whole
        """The block is a whole file, so hard-wrapped lines can be joined."""

    def lines(self) -> "Lines":
        """All lines: overlong ones in overlapping pieces, those of a whole file unwrapped."""
        overlong = _has_overlong(self.text)
        if not (overlong or self.whole):
            return Lines(self._numbers, self.text)
        numbers, lines = self._numbers(), self.text.split(b"\n")
        if overlong:
            numbers, lines = _cut(numbers, lines)
        if self.whole:
            numbers, lines = unwrap(numbers, strip_common(lines))
        return Lines(numbers, b"\n".join(lines))

    def _numbers(self) -> Sequence[int]:
        if self.text is self._data:
            return range(self._first, self.last + 1)
        return list(accumulate((int(c == 10) for c in self._data if c in (10, 13)), initial=self._first))


class Lines:
    """Lines with their numbers in the file, from 1; split and counted only on demand."""

    def __init__(self, numbers: Sequence[int] | Callable[[], Sequence[int]], text: bytes) -> None:
        self._count, self.text = numbers, text

    @cached_property
    def lines(self) -> list[bytes]:
        """The text's lines."""
        return self.text.split(b"\n")

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The number of each line; the parts of a line share one."""
        return self._count() if callable(self._count) else self._count


def _has_overlong(text: bytes) -> bool:
    """Whether a line is longer than LONGEST_LINE_BYTES."""
    start = 0
    while len(text) - start > LONGEST_LINE_BYTES:
        end = text.rfind(b"\n", start, start + LONGEST_LINE_BYTES + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _cut(numbers: Sequence[int], lines: list[bytes]) -> tuple[list[int], list[bytes]]:
    cut_numbers: list[int] = []
    cut_lines: list[bytes] = []
    for number, line in zip(numbers, lines, strict=True):
        pieces = [line[i : i + _PIECE_BYTES] for i in range(0, max(1, len(line) - _OVERLAP_BYTES), _STEP)]
        cut_numbers += [number] * len(pieces)
        cut_lines += pieces
    return cut_numbers, cut_lines


def blocks(handle: IO[bytes]) -> Iterator[Block]:
    """Read a stream to its end; a small one as one block, with hard-wrapped text joined.

    Raises OSError at the end of what could be read when the stream is damaged there, and for a binary file.
    """
    source = _Careful(handle)
    first = source.read(WHOLE_FILE_BYTES)
    if _is_binary(first[:BINARY_LOOK_BYTES]):
        raise OSError("a binary file, not a log")
    if len(first) < WHOLE_FILE_BYTES:
        if first:
            yield Block(1, first.removesuffix(b"\n"), whole=True)
        source.complain()
        return
    number, carry, ahead = 1, b"", io.BytesIO(first)
    while data := ahead.read(BLOCK_BYTES) or source.read(BLOCK_BYTES):
        data = carry + data
        cut = data.rfind(b"\n")
        if cut < 0 and len(data) < BLOCK_BYTES:
            carry = data
        else:
            # A line longer than the block is cut here; its next part has the same number.
            block = Block(number, data[:cut] if cut >= 0 else data)
            carry = data[cut + 1 :] if cut >= 0 else b""
            number = block.last + (cut >= 0)
            yield block
    if carry:
        yield Block(number, carry)
    source.complain()


def _is_binary(head: bytes) -> bool:
    """Whether the first bytes are binary. NULs do not count: a log truncated while it is written begins with them."""
    told = head.replace(b"\0", b"")
    parts = (told[:256], told)
    return all(len(p) - len(p.translate(None, _NO_TEXT)) > BINARY_SHARE * len(p) for p in parts)


def decompress(handle: IO[bytes], layers: int = MOST_LAYERS) -> IO[bytes]:
    """Undo gzip, zstd (needs the zstandard package) and UTF-16, nested too, by the first bytes."""
    buffered = cast(io.BufferedReader, handle if hasattr(handle, "peek") else io.BufferedReader(_Raw(handle)))
    head = buffered.peek(4096)[:4096]
    if head[:2] == b"\x1f\x8b" and layers:
        return decompress(cast(IO[bytes], gzip.GzipFile(fileobj=buffered, mode="rb")), layers - 1)
    if head[:4] == _ZSTD_MAGIC and layers:
        return decompress(_zstd(buffered), layers - 1)
    encoding = _wide_encoding(head)
    return cast(IO[bytes], _Recoded(buffered, encoding)) if encoding else buffered


def _zstd(handle: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise OSError(
            "a zstd file needs the zstandard package: pip install zstandard, or decompress it first"
        ) from None
    return cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(handle, read_across_frames=True))


def _wide_encoding(head: bytes) -> str | None:
    """UTF-16 by its mark (and a line break or a space of it), or by every other byte being NUL."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and b"\0" in head:
        return "utf-16"
    if len(head) >= 64:
        even, odd = head[0:512:2].count(0), head[1:512:2].count(0)
        half = len(head[:512]) // 2
        if odd > 0.9 * half and even == 0:
            return "utf-16-le"
        if even > 0.9 * half and odd == 0:
            return "utf-16-be"
    return None


class _Raw(io.RawIOBase):
    """Any object with read() as a raw stream, so that it can be buffered and peeked at."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data = self._handle.read(len(buffer))
        except (OSError, EOFError):
            raise
        except Exception as error:  # zstandard's own
            raise OSError(str(error)) from None
        buffer[: len(data)] = data
        return len(data)


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


class _Careful:
    """Reads all that a damaged or truncated stream still holds, and reports the damage afterwards."""

    def __init__(self, handle: IO[bytes]) -> None:
        # read1 returns what has been decoded; read would lose it when the stream breaks later.
        self._read = getattr(handle, "read1", handle.read)
        self._trouble: Exception | None = None

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end."""
        parts, left = [], size
        while left > 0 and self._trouble is None:
            try:
                data = self._read(left)
            except Exception as error:  # Every decompressor has its own exception.
                self._trouble = error
                break
            if not data:
                break
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def complain(self) -> None:
        """Raise OSError if the stream was damaged."""
        if self._trouble is not None:
            raise OSError(f"damaged or truncated: {self._trouble}")
