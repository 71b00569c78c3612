"""Check records that somebody else shared. Are they complete? Did the runs keep their promises? Can the numbers be
true?

Everything that can be computed again is computed: hashes from the files, a run's numbers from what its ranks wrote.
Speed, traffic and memory are compared with the limits that the same run measured.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.contract.errors import SpecError
from harness.contract.parity import Trace, same_training, trace_of
from harness.contract.record import LARGEST_BYTES, Record, read_record
from harness.contract.units import MIB
from harness.delivery.plausible import record_problems
from harness.delivery.share import NOTE, TEXT, VERBATIM, private_kind, texts_of
from harness.supervisor.folder import RECORD, list_files, unsound

HASHES = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{40})\b")
"""Hashes of specs and commits, which look like tokens in tables."""
DERIVED = (".md", ".html", ".csv", ".svg", ".yaml")
"""Readable files that the client makes from records; in them, addresses and versions of libraries are no secrets."""
PUBLIC = {"a host", "an address", "a path"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One promise or number that does not hold."""

    place: str
    """File or folder, below the bundle."""
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(slots=True)
class Checked:
    """The outcome of a check."""

    records: int = 0
    problems: list[Problem] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """Check -> records that it could be made for."""

    @property
    def exit_status(self) -> int:
        """0: all holds; 1: something does not; 2: nothing could be checked."""
        return 2 if not self.records else 1 if self.problems else 0


def check(root: Path) -> Checked:
    """Check every record below a folder, and every file for private text."""
    checked, known = Checked(), {}
    for path in sorted(root.rglob(RECORD)):
        place = path.relative_to(root).as_posix()
        if _leads_out(path, root):
            continue  # said of every such file below
        checked.records += 1
        try:
            known[path.parent] = read_record(path)
        except SpecError as error:
            checked.problems.append(Problem(place, str(error).removeprefix(f"{path}:").lstrip()))
    trained = _references(known.values())
    for folder, record in known.items():
        place = folder.relative_to(root).as_posix()
        found = [*_whole(root, folder, record), *record_problems(folder, record, trained, checked.done)]
        checked.problems += [Problem(place, text) for text in found]
    checked.problems += _private(root)
    return checked


def _leads_out(path: Path, root: Path) -> bool:
    """Whether a link leaves the bundle, or leads to itself."""
    try:
        return path.is_symlink() and not path.resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return True


def _whole(root: Path, folder: Path, record: Record) -> Iterator[str]:
    """Spec, place and files of an attempt."""
    if record.spec_hash != record.spec.hash():
        yield f"spec_hash: found {record.spec_hash[:12]}, but the record's spec has the hash {record.spec.hash()[:12]}"
    place, own = folder.relative_to(root).parts, record.spec.path()
    is_run = len(place) >= own.count("/") + 1 and place[0] != "frontier" and not place[-1].startswith("trial-")
    if is_run and not folder.as_posix().endswith(f"/{own}"):
        yield f"holds the record of {own}"
    if record.source is not None:
        return
    for path in unsound(folder, record):
        yield f"{path}: gone, or not what the record lists (size and sha256)"
    listed = {file.path for file in record.files}
    for path in (file.path for file in list_files(folder) if file.path not in listed):
        yield f"{path}: not in the record's list of files"
    if NOTE not in record.notes:
        yield "not marked as redacted; publish it with `dtbench share`"


def _references(records: Iterable[Record]) -> dict[str, Trace]:
    """Losses of the bundle's own reference runs, by what they trained."""
    found: dict[str, Trace] = {}
    for record in records:
        if record.spec.identity.reference and record.outcome == "ok" and record.measured and record.measured.loss:
            found.setdefault(same_training(record.spec), trace_of(record.measured))
    return found


def _private(root: Path) -> Iterator[Problem]:
    """Private text in any file of the bundle, first line of each file."""
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root).as_posix()
        if _leads_out(path, root):
            yield Problem(place, "a link out of the bundle")
        elif path.is_file() and not path.is_symlink() and (text := _private_in(path)):
            yield Problem(place, text)


def _private_in(path: Path) -> str | None:
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
        if len(raw) > LARGEST_BYTES:
            return f"more than {LARGEST_BYTES // MIB} MiB, too large to be looked through"
        text = raw.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        return f"cannot be read: {error}"
    except UnicodeDecodeError:
        return "not a text; `dtbench share` removes such files"
    if path.name == RECORD:
        return _private_in_record(text)
    if not path.name.endswith((*TEXT, *VERBATIM, *DERIVED)):
        return "of an unknown kind; `dtbench share` removes such files"
    derived = path.name.endswith(DERIVED)
    allowed = PUBLIC if derived else set()
    for number, line in enumerate(text.splitlines(), 1):
        kind = private_kind(HASHES.sub("", line) if derived else line)
        if kind is not None and kind not in allowed:
            return f"line {number} holds {kind}"
    return None


def _private_in_record(text: str) -> str | None:
    try:
        plain = json.loads(text)
        environment = dict(plain.get("environment") or {})
    except (ValueError, AttributeError, RecursionError):
        return None  # said already: it is no record
    # In those files, four numbers with dots are a version, not an address.
    environment.pop("versions", None)
    parts = {**plain, "environment": environment, "files": []}
    found = ((key, private_kind(text)) for name, part in parts.items() for key, text in texts_of(part, name))
    return next((f"{key} holds {kind}" for key, kind in found if kind), None)


def text(checked: Checked, root: Path) -> str:
    """The outcome for a terminal."""
    if not checked.records:
        return f"{root}: found no {RECORD} below it, so that nothing could be checked"
    lines = [f"{root}: {checked.records} records"]
    lines += [f"  {count} {name}" for name, count in checked.done.items()]
    lines += [f"{len(checked.problems)} problem{'s' * (len(checked.problems) != 1)}"] if checked.problems else []
    lines += [f"  {problem}" for problem in checked.problems]
    return "\n".join([*lines, *([] if checked.problems else ["All of it holds."])])
