"""The JSON a run leaves behind, whatever happened to it.

Two levels: `RankResult` (`measured.py`), what one rank's worker measured (`result-<rank>.json` in the try's folder,
written atomically when the worker finishes), and `Record`, what the supervisor makes of all ranks
and tries. Unmeasured is null, never 0 and never a guess.

Folder of an attempt (OUT):

    spec.json                    the spec as given
    record.json                  last, atomically
    telemetry.jsonl              NVML samples, when there are GPUs
    try-1/launcher.log           what the launcher said
    try-1/rank-<R>.log           stdout and stderr of the rank
    try-1/heartbeat-<R>.json     last sign of life
    try-1/exit-<R>.json          {"rank", "exit_code", "signal"}: how the rank's process ended
    try-1/result-<R>.json        RankResult
    try-1/stacks-<R>.txt         faulthandler's dump, when a stall was found
    try-1/flight-recorder/       dumps, when there are any
"""

from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from harness.contract.codec import Float, Int, NotNegativeFloat, decode, decode_file, encode
from harness.contract.errors import SpecError, show
from harness.contract.heartbeat import RankExit
from harness.contract.measured import Measured
from harness.contract.outcome import Diagnosis
from harness.contract.platform import with_offer
from harness.contract.spec import RunSpec
from harness.contract.units import MIB

RECORD_VERSION = 1
LARGEST_BYTES = 256 * MIB
"""Of a record, and of any file of a bundle, unpacked: a small .gz of a stranger may unpack to any size."""


class Try(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training process group inside the attempt."""

    index: Int
    remedy: str | None
    environment: dict[str, str]
    """What the remedy added."""
    diagnosis: Diagnosis
    exits: tuple[RankExit, ...]
    launcher_exit_code: Int | None
    wall_s: Float | None
    """null: a cited source gives none."""
    last_step: Int | None
    """Last step any rank reported, 0-based; null when none began."""
    peak_allocated_bytes: Int | None = None
    """Last allocated bytes any heartbeat reported, for tries that died."""


class File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file beside the record."""

    path: str
    size_bytes: Int
    sha256: str


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where it ran."""

    versions: dict[str, str]
    device_name: str | None
    """The accelerator's name as its driver gives it."""
    host: dict[str, Any]
    """CPU model, cores, memory, kernel, driver. No host name, no user, no path."""
    git_commit: str | None
    """Commit of this repository that measured it; null outside a checkout."""
    variables: dict[str, str]
    """Variables that change behaviour, by an allow-list of prefixes; secrets never."""


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt's whole story."""

    record_version: Int
    source: str | None
    """null: measured by this harness; otherwise where the figures were taken from."""
    spec: RunSpec
    spec_hash: str
    """sha256 of the spec: names the attempt."""
    outcome: str
    diagnosis: Diagnosis
    started_at: str | None
    """When the supervisor began, UTC, ISO 8601."""
    ended_at: str | None
    wall_s: NotNegativeFloat | None
    """Seconds from the start of the attempt to its record."""
    tries: tuple[Try, ...]
    measured: Measured | None
    resolved: dict[str, Any] | None
    environment: Environment | None
    files: tuple[File, ...]
    pod: Int = 1
    """This is the n-th pod of its Job."""
    notes: tuple[str, ...] = ()
    published: dict[str, Any] = {}
    """Figures of a cited source that this harness does not define, for example its NCCL share."""

    def __post_init__(self) -> None:
        for name in ("started_at", "ended_at"):
            _check_time(getattr(self, name), name)
        if self.record_version != RECORD_VERSION:
            raise SpecError(f"record_version: found {self.record_version}, this code reads {RECORD_VERSION}")
        if self.diagnosis.outcome != self.outcome:
            raise SpecError(f"diagnosis.outcome: found {self.diagnosis.outcome!r}, expected {self.outcome!r}")

    @property
    def dagger(self) -> bool:
        """True when the numbers came from a try with a remedy."""
        return bool(self.tries) and self.tries[-1].remedy is not None and self.outcome == "ok"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of the whole record."""
        encoded: dict[str, Any] = encode(self)
        return encoded


def _check_time(text: str | None, key: str) -> None:
    """Refuse a time that cannot be compared with others. Raises SpecError naming the key."""
    try:
        known = text is None or datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        known = False
    if not known:
        raise SpecError(
            f"{key}: found {show(text)}, expected a time with its offset, for example 2026-01-01T00:00:00+00:00"
        )


def _modern(plain: Any) -> Any:
    return plain | {"spec": with_offer(plain["spec"])} if isinstance(plain, dict) and "spec" in plain else plain


def parse_record(plain: Any) -> Record:
    """Decode a record from parsed JSON. Raises SpecError naming the dotted key."""
    return decode(Record, _modern(plain))


def read_record(path: Path) -> Record:
    """Read a record file, which may be a stranger's. Raises SpecError naming the file."""
    refuse_endless(path)
    return decode_file(Record, path, _modern)


def refuse_endless(path: Path) -> None:
    """Raises SpecError for a file of a stranger that would be read without end: a pipe, a device, a huge file."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SpecError(f"{path}: cannot be read: found no plain file")
    if path.is_file() and path.stat().st_size > LARGEST_BYTES:
        raise SpecError(f"{path}: cannot be read: found more than {LARGEST_BYTES // MIB} MiB; no record is as large")
