"""Read PyTorch's out-of-memory message: bytes asked, bytes there, and whether fragmentation is the cause."""

import re
from dataclasses import dataclass

from harness.contract.units import GIB, KIB, MIB

FRAGMENTED_SHARE = 0.10
"""If reserved but unallocated memory covers the request and is this share of the card, fragmentation is the cause."""
NEAR_FULL_SHARE = 0.05
"""A device with less than this share free counts as full: its rank's silence is an out-of-memory."""
NEAR_LINE_SHARE = 0.15
"""With less than this share free on any rank, a wedge may hide an out-of-memory, which becomes the runner-up."""

_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TiB": 2**40}
_SIZE = r"(?P<{0}>[\d.]+ (?:bytes|[KMGT]i?B))"
_ASKED = re.compile(r"[Tt]ried to allocate " + _SIZE.format("asked"))
_FIELDS = tuple(
    re.compile(p)
    for p in (
        r"total capaci?ty of " + _SIZE.format("total"),
        _SIZE.format("total") + r" total capaci?ty",
        r"of which " + _SIZE.format("free") + r" is free",
        _SIZE.format("free") + r" free",
        _SIZE.format("allocated") + r" (?:is allocated by PyTorch|already allocated)",
        _SIZE.format("unallocated") + r" is reserved by PyTorch but unallocated",
        _SIZE.format("reserved") + r" reserved in total by PyTorch",
        _SIZE.format("allowed") + r" allowed",
    )
)
_GPU = re.compile(r"\(?GPU (?P<gpu>\d+)[; ]")


_PROCESS = re.compile(r"Process (\d+) has [\d.]+ [KMGT]?i?B memory in use")


@dataclass(frozen=True, slots=True)
class Shortage:
    """Numbers of one message, in bytes; None where the message gives none."""

    asked: int | None
    total: int | None
    free: int | None
    allocated: int | None
    unallocated: int | None
    gpu: int | None

    @property
    def fragmented(self) -> bool:
        """Whether enough was reserved and unused for the request, and it is a large share of the card."""
        if self.asked is None or self.unallocated is None or self.total is None:
            return False
        return self.unallocated >= self.asked and self.unallocated >= FRAGMENTED_SHARE * self.total

    @property
    def in_pieces(self) -> bool:
        """Whether free and unallocated memory together would have held the request: enough, but not in one piece."""
        if self.asked is None or self.unallocated is None or self.free is None:
            return False
        return self.free + self.unallocated >= self.asked

    def sentence(self) -> str:
        """`926.00 MiB asked, 439.00 MiB free of 22.03 GiB, 15.46 GiB allocated, ...`."""
        parts = [f"{show(self.asked)} asked"] if self.asked is not None else []
        if self.free is not None:
            parts.append(f"{show(self.free)} free" + (f" of {show(self.total)}" if self.total else ""))
        if self.allocated is not None:
            parts.append(f"{show(self.allocated)} allocated")
        if self.unallocated is not None:
            parts.append(f"{show(self.unallocated)} reserved but unallocated")
        return ", ".join(parts)


def read_shortage(text: str) -> Shortage:
    """Numbers of an out-of-memory message of any PyTorch version since 1.8."""
    found: dict[str, int] = {}
    if match := _ASKED.search(text):
        found["asked"] = _bytes(match["asked"])
    for pattern in _FIELDS:
        if match := pattern.search(text):
            for key, value in match.groupdict().items():
                found.setdefault(key, _bytes(value))
    if "unallocated" not in found and "reserved" in found and "allocated" in found:
        found["unallocated"] = max(0, found["reserved"] - found["allocated"])
    if "allowed" in found and "free" in found:
        # Under a cap the process may not take all free memory of the device, only what the cap leaves.
        held = found.get("allocated", 0) + found.get("unallocated", 0)
        found["free"] = min(found["free"], max(0, found["allowed"] - held))
    gpu = _GPU.search(text)
    return Shortage(
        asked=found.get("asked"),
        total=found.get("allowed", found.get("total")),
        free=found.get("free"),
        allocated=found.get("allocated"),
        unallocated=found.get("unallocated"),
        gpu=int(gpu["gpu"]) if gpu else None,
    )


def processes_on_card(text: str) -> int:
    """Processes on the card by the message: those that it lists and the one that failed."""
    listed = set(_PROCESS.findall(text))
    return len(listed) + (bool(listed) and "this process has" in text)


def near_full(allocated_bytes: int, free_bytes: int, share: float = NEAR_FULL_SHARE) -> bool:
    """Whether a heartbeat shows a device within a share of full; a free of -1 means unknown."""
    return free_bytes >= 0 and allocated_bytes > 0 and free_bytes < share * (allocated_bytes + free_bytes)


def show(size: int | None) -> str:
    """Bytes as GiB, or MiB below one GiB."""
    if size is None:
        return "?"
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.2f} MiB"


def _bytes(text: str) -> int:
    number, unit = text.split()
    return int(float(number) * _UNITS[unit])
