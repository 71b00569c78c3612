"""Every stored case comes out right, and also when it is mangled the way people's tools mangle logs."""

import gzip
import io
from collections.abc import Callable

import pytest

from harness.contract.outcome import OUTCOMES
from harness.diagnosis import Facts, Scanner, diagnose
from tests.diagnosis.replay import Stored, complaints, replay, stored_cases

CASES = stored_cases()
SINGLE = [
    c
    for c in CASES
    if (c.folder / "log.txt").is_file()
    and not c.facts
    and not c.name.startswith(("shape-", "k8s", "unknown-binary"))
    and (c.folder / "log.txt").read_bytes().count(b"\n") >= 3
]
"""Cases of one plain log; what all lines share cannot be known from one or two."""


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_stored_case(case: Stored) -> None:
    assert complaints(case, replay(case)) == []


def test_every_outcome_has_a_case() -> None:
    assert {c.expected["outcome"] for c in CASES} == set(OUTCOMES)


def stamped(log: bytes) -> bytes:
    return b"".join(b"2025-03-02T10:11:12.123456789Z " + line + b"\n" for line in log.splitlines())


def composed(log: bytes) -> bytes:
    return b"".join(b"trainer-0  | " + line + b"\n" for line in log.splitlines())


def windows(log: bytes) -> bytes:
    return log.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def coloured(log: bytes) -> bytes:
    return b"".join(b"\x1b[36m" + line + b"\x1b[0m\n" for line in log.split(b"\n"))


def wide(log: bytes) -> bytes:
    return log.decode("utf-8", "replace").encode("utf-16")


def syslogged(log: bytes) -> bytes:
    return b"".join(
        b"Mar  2 10:11:%02d node-a python[123]: %s\n" % (i % 60, line) for i, line in enumerate(log.splitlines())
    )


def numbered(log: bytes) -> bytes:
    return b"".join(b"%6d\t%s\n" % (i, line) for i, line in enumerate(log.splitlines(), 1))


def quoted(log: bytes) -> bytes:
    return b"".join(b"> " + line + b"\n" for line in log.splitlines())


def wrapped(log: bytes) -> bytes:
    return b"".join(
        b"\n".join(line[i : i + 80] for i in range(0, max(1, len(line)), 80)) + b"\n" for line in log.split(b"\n")
    )


MANGLES = [stamped, composed, windows, coloured, wide, gzip.compress, syslogged, numbered, quoted, wrapped]


@pytest.mark.parametrize("mangle", MANGLES)
@pytest.mark.parametrize("case", SINGLE, ids=lambda c: c.name)
def test_mangled_case(case: Stored, mangle: Callable[[bytes], bytes]) -> None:
    scanner = Scanner()
    scanner.scan(io.BytesIO(mangle((case.folder / "log.txt").read_bytes())), "log.txt")
    assert complaints(case, diagnose(scanner.findings, Facts())) == []
