"""How fast the diagnosis reads a large log, and in how much memory.

    python benchmarks/diagnosis_speed.py [--gigabytes 2]

Prints one line a kind of log: megabytes per second of one core, peak resident memory, the outcome. The
log is one piece of a megabyte over and over, so that nothing but the reader is in memory.
"""

import argparse
import io
import resource
import time
from collections.abc import Callable, Iterator
from itertools import chain

from harness.diagnosis import Facts, Scanner, diagnose

TAIL = (
    b'[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 9, in main\n[rank3]:     step()\n'
    b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    b"22.03 GiB of which 1.00 GiB is free.\n"
)


class Made(io.RawIOBase):
    """A stream of `size` bytes, made of one piece over and over, and a tail."""

    def __init__(self, piece: bytes, size: int, tail: bytes = TAIL) -> None:
        self._parts: Iterator[bytes] = chain((piece for _ in range(size // len(piece))), [tail])
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = memoryview(next(self._parts, b""))
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


def measure(line: Callable[[int], bytes], size: int) -> None:
    """Read `size` bytes made of the line and print the figures."""
    piece = b"".join(line(i) for i in range((1 << 20) // len(line(1))))
    scanner = Scanner()
    started_s = time.process_time()
    scanner.scan(io.BufferedReader(Made(piece, size)), "log")
    found = diagnose(scanner.findings, Facts())
    seconds = time.process_time() - started_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{line.__name__:8} {size / 1e6 / seconds:6.0f} MB/s {seconds:6.1f} s {peak_mib:6.0f} MiB peak  {found.outcome}"
    )


def main() -> None:
    """Measure every kind of log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    size = int(parser.parse_args().gigabytes * 1e9)
    for line in (plain, mixed, bar, endless, error):
        measure(line, size)


if __name__ == "__main__":
    main()
