"""Logs of any size and kind: bounded memory, linear time, right line numbers."""

import io
import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from harness.contract.outcome import Diagnosis
from harness.diagnosis import Facts, Scanner, Source, diagnose, diagnose_source
from harness.diagnosis.signatures import SIGNATURES

OOM = b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 22.03 GiB of which 1.00 GiB is free.\n"  # noqa: E501
TRACEBACK = (
    b'[rank3]: Traceback (most recent call last):\n[rank3]:   File "t.py", line 1, in f\n[rank3]:     g()\n' + OOM
)


class Endless(io.RawIOBase):
    """A stream made as it is read."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._rest = parts, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = part
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def look(data: bytes) -> Diagnosis:
    scanner = Scanner()
    scanner.scan(io.BytesIO(data), "log")
    return diagnose(scanner.findings, Facts())


def steps(count: int) -> bytes:
    return b"".join(
        b"step %d loss %.4f lr 1e-4 tokens/s %d\n" % (i, 3.0 - i * 1e-7, 17000 + i % 91) for i in range(count)
    )


def test_line_numbers_hold_far_into_a_large_log() -> None:
    body = steps(200_000)
    found = look(body + TRACEBACK)
    assert len(body) > 5 << 20
    assert (found.outcome, found.culprit_rank, found.evidence[0].line) == ("cuda_oom", 3, 200_004)


def test_carriage_returns_do_not_count_as_lines() -> None:
    bar = b"\r".join(b"%3d%%|### | %d/100 [00:01<00:02, 3.1it/s]" % (i % 100, i % 100) for i in range(120_000)) + b"\n"
    found = look(bar + bar + TRACEBACK)
    assert len(bar) > 4 << 20
    assert found.evidence[0].line == 6


def test_a_100_mb_line_needs_little_memory() -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * (1 << 20)
        yield b" \n" + TRACEBACK

    tracemalloc.start()
    started_s = time.process_time()
    scanner = Scanner()
    scanner.scan(io.BufferedReader(Endless(parts())), "log")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found = diagnose(scanner.findings, Facts())
    assert (found.outcome, found.evidence[0].line) == ("cuda_oom", 5)
    assert time.process_time() - started_s < 20
    assert peak_bytes < 100 << 20


def test_an_error_inside_a_monster_line_is_seen() -> None:
    assert look(b"y" * (3 << 20) + b" " + OOM).outcome == "cuda_oom"


def test_memory_stays_bounded_on_text_that_never_repeats() -> None:
    chance = random.Random(0)

    def parts() -> Iterator[bytes]:
        for _ in range(12):
            yield b"".join(b"%s %s\n" % (chance.randbytes(20).hex().encode(), chance.randbytes(20).hex().encode())
                           for _ in range(12_000))  # fmt: skip

    tracemalloc.start()
    scanner = Scanner()
    scanner.scan(io.BufferedReader(Endless(parts())), "log")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 200 << 20


def test_ten_thousand_ranks_say_the_same() -> None:
    everyone = b"".join(b"[rank%d]: KeyError: 'labels'\n" % r for r in range(10_000))
    found = look(b"[rank7]: ValueError: first\n" + everyone)
    assert (found.outcome, found.culprit_rank) == ("python_exception", 7)


def test_one_absent_rank_of_ten_thousand_is_found() -> None:
    line = (
        b"[rank%d]:[E302 10:20:44.9 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank %d] failure found "
        b"by watchdog at work sequence id: 9 PG status: last enqueued work: %d, last completed work: 8\n"
    )
    log = b"".join(line % (r, r, 8 if r == 9_876 else 10) for r in range(10_000))
    wait = (
        b"[rank0]:[E302 10:20:44.9 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        b"WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600059 milliseconds\n"
    )
    found = look(wait + log)
    assert (found.outcome, found.culprit_rank) == ("collective_wedge", 9_876)


def test_zstd_in_several_frames(tmp_path: Path) -> None:
    path = tmp_path / "log.zst"
    path.write_bytes(zstandard.compress(steps(10)) + zstandard.compress(TRACEBACK))
    found = diagnose_source(Source(path=path))
    assert (found.outcome, found.evidence[0].line) == ("cuda_oom", 14)


@pytest.mark.parametrize(
    "data", [b"\x1f\x8b\x08\x00damaged", b"\x28\xb5\x2f\xfddamaged", b"\0" * 5000, bytes(range(256))]
)
def test_damaged_and_binary_files_are_unknown(data: bytes) -> None:
    assert look(data).outcome == "unknown"


def test_nested_compression_is_opened_within_bounds() -> None:
    import gzip

    packed = gzip.compress(zstandard.compress(TRACEBACK))
    assert look(packed).outcome == "cuda_oom"
    for _ in range(50):
        packed = gzip.compress(packed)
    assert look(packed).outcome == "unknown"


def test_a_false_utf_16_mark_hides_nothing() -> None:
    assert look(b"\xff\xfe\xfa\n" + TRACEBACK + b"\xc3\x28").outcome == "cuda_oom"
    assert look(b"\xff\xfe" + TRACEBACK.decode().encode("utf-16-le")).outcome == "cuda_oom"


def test_a_truncated_gzip_still_tells_what_it_holds(tmp_path: Path) -> None:
    import gzip

    packed = gzip.compress(TRACEBACK + random.Random(0).randbytes(50_000))
    assert look(packed[:-20_000]).outcome == "cuda_oom"


@pytest.mark.parametrize("needle", sorted({n for s in SIGNATURES for n in s.needles}))
def test_no_pattern_is_slow_on_repeated_needles(needle: str) -> None:
    started_s = time.process_time()
    look((needle.encode() + b" ") * (100_000 // (len(needle) + 1)))
    assert time.process_time() - started_s < 3
