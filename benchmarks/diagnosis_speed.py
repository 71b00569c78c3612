"""How fast the diagnosis reads a large log, and in how much memory.

    python benchmarks/diagnosis_speed.py [--gigabytes 2]

Prints one line a kind of log: megabytes per second of one core, peak resident memory, the outcome. The
log is one piece of a megabyte over and over, or of chance text that never repeats (made as it is read, and the time
that takes left out), so that nothing but the reader is in memory.
"""

import argparse
import io
import random
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from harness.diagnosis import Facts, Scanner, diagnose

TAIL = (
    b'[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 9, in main\n[rank3]:     step()\n'
    b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    b"22.03 GiB of which 1.00 GiB is free.\n"
)


class Made(io.RawIOBase):
    """A stream of `size` bytes, made of pieces of one size, and a tail."""

    def __init__(self, piece: Callable[[], bytes], size: int, tail: bytes = TAIL) -> None:
        self._parts: Iterator[bytes] = chain((piece() for _ in range(size // len(piece()))), [tail])
        self._rest = memoryview(b"")
        self.making_s = 0.0
        """CPU time spent here."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            started_s = time.process_time()
            self._rest = memoryview(next(self._parts, b""))
            self.making_s += time.process_time() - started_s
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def plain(i: int) -> bytes:
    """A training loop's own line."""
    return b"step %d loss %.4f lr 1.0e-04 grad_norm %.3f tokens/s %d mem %.2f GiB\n" % (
        i,
        3.1,
        i % 7 / 3,
        17000 + i,
        22.1,
    )


def mixed(i: int) -> bytes:
    """What several libraries write at once, a third of it about errors."""
    kinds = (
        plain(i),
        b"[2025-03-02 10:00:%02d,101] [INFO] [logging.py:96:log_dist] [Rank 0] step=%d, skipped=0, lr=[1e-05]\n"
        % (i % 60, i),
        b"node-a:%d:%d [%d] NCCL INFO Channel %02d/0 : %d[0] -> %d[0] via P2P/CUMEM\n"
        % (i, i, i % 8, i % 32, i % 8, i % 7),
        b"WARNING: sample %08x has %d tokens, truncating\n" % (i * 2654435761 % 2**32, i),
        b"[rank%d]:[W302 10:11:12.0 socket.cpp:115] Warning: retry, error: something %d\n" % (i % 8, i),
    )
    return kinds[i % len(kinds)]


def bar(i: int) -> bytes:
    """A progress bar that never ends its line."""
    return b"\r%3d%%|%s| %d/9999 [00:%02d<00:%02d, %.2fit/s, loss=%.3f]" % (
        i % 100,
        b"#" * (i % 50),
        i,
        i % 60,
        i % 60,
        3.1,
        2.0,
    )


def endless(i: int) -> bytes:
    """One line of text without a break."""
    return b"lorem ipsum dolor sit amet "


def error(i: int) -> bytes:
    """The same error from ten thousand ranks, over and over."""
    return b"[rank%d]: RuntimeError: CUDA error: an illegal memory access was encountered (%d)\n" % (i % 10_000, i)


def repeated(line: Callable[[int], bytes]) -> Callable[[], bytes]:
    """The same megabyte of such lines at every call."""
    piece = b"".join(line(i) for i in range((1 << 20) // len(line(1))))
    return lambda: piece


def spread(shares: dict[bytes, int]) -> bytes:
    """A table that turns chance bytes into these letters, each as often as its share of 256."""
    table = b"".join(letter * share for letter, share in shares.items())
    assert len(table) == 256, len(table)
    return table


# Words of letters as English has them, about 13 a line; and hex in lines of 80.
WORDS = spread(
    {b"e": 26,
     b"t": 20, b"a": 18, b"o": 17, b"i": 15, b"n": 15, b"s": 14, b"r": 13, b"h": 12, b"l": 9, b"d": 9, b"c": 7,
     b"u": 7, b"m": 6, b"f": 5, b"p": 5, b"g": 5, b"w": 4, b"y": 4, b"b": 3, b"v": 2, b"k": 2, b" ": 35, b"\n": 3}
)  # fmt: skip
HEX = spread({bytes([digit]): 16 for digit in b"0123456789abcdef"})


def words(chance: random.Random) -> bytes:
    """A megabyte of words that nobody wrote before."""
    return chance.randbytes(1 << 20).translate(WORDS)


def hashes(chance: random.Random) -> bytes:
    """A megabyte of lines of hex."""
    digits = chance.randbytes(1 << 20).translate(HEX)
    return b"\n".join(digits[i : i + 80] for i in range(0, len(digits), 80)) + b"\n"


def samples(chance: random.Random) -> bytes:
    """A megabyte of dated lines of JSON with an id and a text."""
    text = chance.randbytes(1 << 20).translate(WORDS).replace(b"\n", b" ")
    return b"".join(
        b'2025-03-02T10:00:%02dZ INFO {"id": "%s", "text": "%s"}\n'
        % (i % 60, chance.randbytes(8).hex().encode(), text[i : i + 120])
        for i in range(0, len(text), 170)
    )


def measure(name: str, piece: Callable[[], bytes], size: int) -> None:
    """Read `size` bytes made of such pieces and print the figures."""
    scanner, made = Scanner(), Made(piece, size)
    started_s = time.process_time()
    scanner.scan(io.BufferedReader(made), "log")
    found = diagnose(scanner.findings, Facts())
    seconds = time.process_time() - started_s - made.making_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:8} {size / 1e6 / seconds:6.0f} MB/s {seconds:6.1f} s {peak_mib:6.0f} MiB peak  {found.outcome}")


def main() -> None:
    """Measure every kind of log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    size = int(parser.parse_args().gigabytes * 1e9)
    for line in (plain, mixed, bar, endless, error):
        measure(line.__name__, repeated(line), size)
    for novel in (words, hashes, samples):
        measure(novel.__name__, partial(novel, random.Random(0)), size)


if __name__ == "__main__":
    main()
