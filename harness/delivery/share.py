"""`python -m harness share FOLDER`: remove hosts, users, paths and tokens from records before they are published.

Logs are redacted in place, and so are quotes of them in records; each record's list of files is renewed to match.
Binary files (a flight recorder's dump holds source paths in a pickle) are removed, and the record says so. Files made
from records that may quote them, such as the report, are removed too: they can be made again. A spec is never changed,
because its hash names the folder, so a spec with something private in it is refused.
"""

import dataclasses
import gzip
import json
import re
import typing
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import structs

from harness.contract.codec import read_json
from harness.contract.errors import HarnessError, clip
from harness.contract.files import write_atomically
from harness.contract.outcome import Diagnosis
from harness.contract.record import Environment, Record, read_record
from harness.contract.spec import Arm
from harness.diagnosis.redact import Redactor
from harness.supervisor.folder import RECORD, list_files, write_record
from harness.supervisor.progress import say

NOTE = "logs redacted for publication"
TEXT = (".log", ".txt", ".jsonl", ".log.gz", ".txt.gz")
VERBATIM = (".json",)
"""Files that this harness writes without hosts, users and paths."""
CLUSTER = "k8s.json"
"""Files of the GKE client that quote Kubernetes about nodes and pods."""
RUNS = [f"*/*/{arm}/r*-*/a*/{RECORD}" for arm in typing.get_args(Arm)]
PROBES = [f"frontier/*/*/{arm}/*/*/a*/{RECORD}" for arm in typing.get_args(Arm)]
"""Places of attempts in a study's results: of runs and of frontiers."""
WORDS = [f"{place}.log" for arm in typing.get_args(Arm) for place in (f"*/*/{arm}/r*-*/a*", f"frontier/*/*/{arm}/*")]
"""Places of the runs' output, beside their folders."""
JOBS = "logs"
"""Logs of the workflow's jobs; those of runs are links to the files in WORDS."""
DERIVED = {
    ("report.md", "report.html", "diagnoses.json"): "--profile local report",
    ("plan.json", "frontier-plan.json"): "--profile local plan",
    ("manifests/*.yaml",): "--profile gke manifests",
}
"""File made from records or specs that may quote them -> command that makes it again."""
FOLDER_NAMES = ("identity.study", "identity.config", "platform.name")
"""Keys of a spec whose texts are names of folders, so that `gke-l4-x4` is not taken for a host."""
HASH_KEY = re.compile(r"hash|commit|revision|sha", re.I)
HASH = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})(?:-dirty)?")
STAND_IN = re.compile(r"<([a-z]+)\d*>|/(home|path)\d+/")
NUMBERED = re.compile(r"(?<=<)(?:[a-z]+)\d+(?=>)|(?<=/)(?:home|path)\d+(?=/|$)")
KINDS = {"home": "a path", "path": "a path", "url": "a host", "address": "an address", "mail": "a mail address"}
"""Kind of private text -> how an error message calls it, where the kind's own name is unclear."""
EXPECTED = "expected one study's results, for example results/NAME, or one attempt's folder"


def share(root: Path) -> int:
    """Redact every attempt of one study, or one attempt, that is not yet marked so; returns their number.

    Raises HarnessError for any other folder, and when something cannot be read or a spec is private, before anything is
    changed.
    """
    root = _folder(root)
    attempts = _attempts(root)
    _refuse_unfinished(root)
    all_of_them = [pair for folder, record in attempts for pair in (*_trials(folder), (folder, record))]
    fresh = [(folder, record) for folder, record in all_of_them if NOTE not in record.notes and record.source is None]
    for folder, record in fresh:
        _refuse_private(folder, record)
    try:
        for folder, _ in fresh:
            for path in _own(folder):
                _read(path)
        if fresh:
            # This comes first: a call that is cut short must not leave the old report beside redacted records.
            _remove_derived(root, fresh[0][1].spec.identity.study)
        for folder, record in fresh:
            write_record(folder, _shared(folder, record))
        for path in _beside(root):
            _rewrite(path, Redactor().line)
    except OSError as error:
        raise HarnessError(
            f"{error.filename or root}: {error.strerror or error}; call it again when that works"
        ) from None
    return len(fresh)


def _folder(root: Path) -> Path:
    try:
        root = root.resolve()
        found = None if root.is_dir() else "found a file" if root.exists() else "found nothing of that name"
    except OSError as error:
        found = error.strerror
    if found:
        raise HarnessError(f"{root}: {found}; {EXPECTED}")
    return root


def _beside(root: Path) -> Iterator[Path]:
    """Output of runs and of the workflow's jobs, beside the attempts' folders."""
    for pattern in WORDS:
        yield from sorted(root.glob(pattern))
    yield from (path for path in sorted((root / JOBS).rglob("*.log")) if path.is_file() and not path.is_symlink())


def _remove_derived(root: Path, study: str) -> None:
    if (root / RECORD).exists():
        return
    place = "" if root.parent == Path("results").resolve() else f" results={root.parent}"
    for patterns, target in DERIVED.items():
        found = [path for pattern in patterns for path in sorted(root.glob(pattern))]
        for path in found:
            path.unlink()
        if found:
            names = ", ".join(path.relative_to(root).as_posix() for path in found)
            say(f"removed {names}: made again by `snakemake {target} --config study={study}{place}`")


def _refuse_private(folder: Path, record: Record) -> None:
    texts = texts_of(record.spec.to_json(), "spec")
    private = [f"{key}: holds {kind}" for key, text in texts if (kind := private_kind(text))]
    if private:
        raise HarnessError(
            f"{folder / RECORD}: {'; '.join(private)}; a spec cannot be redacted, since its hash names the run: "
            "publish runs of a spec without it"
        )


def texts_of(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Dotted key and text of every value that may be private in a spec or in another part of a record."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else ((str(index), one) for index, one in enumerate(value))
        for name, inner in pairs:
            yield from texts_of(inner, f"{key}.{name}")
    elif isinstance(value, str) and key.removeprefix("spec.") not in FOLDER_NAMES:
        name = key.rpartition(".")[2]
        if HASH.fullmatch(value) and HASH_KEY.search(name):
            return
        # The name tells the Redactor what the value is: `user=`, `token=`.
        yield key, f"{name}={value}" if key.startswith("spec.environment.") else value


def private_kind(text: str) -> str | None:
    """The kind of private content in a text; None when it has none, as after redaction."""
    redacted = each_text(text, Redactor().line)
    # A text that was redacted before holds stand-ins. They get other numbers here, so compare the text without numbers.
    if redacted == text or NUMBERED.sub("", redacted) == NUMBERED.sub("", text):
        return None
    known = {match[0] for match in STAND_IN.finditer(text)}
    match = next((m for m in STAND_IN.finditer(redacted) if m[0] not in known), STAND_IN.search(redacted))
    kind = (match[1] or match[2]) if match else "private text"
    return KINDS.get(kind, f"a {kind}")


def _refuse_unfinished(root: Path) -> None:
    places = [place for pattern in (*RUNS, *PROBES) for place in root.glob(pattern.removesuffix(f"/{RECORD}"))]
    unfinished = sorted(place for place in places if place.is_dir() and not (place / RECORD).exists())
    if unfinished:
        raise HarnessError(
            f"{unfinished[0]}: found no {RECORD} in it, nor in {len(unfinished) - 1} more folders, so nobody knows "
            "what they hold; finish their runs, or remove the folders"
        )


def _attempts(root: Path) -> list[tuple[Path, Record]]:
    if (root / RECORD).is_file():
        return [(root, read_record(root / RECORD))]
    found = [(path.parent, read_record(path)) for pattern in (*RUNS, *PROBES) for path in sorted(root.glob(pattern))]
    if not found:
        raise HarnessError(f"{root}: found no attempt where a study has them (PLATFORM/CONFIG/ARM/RUN/aN); {EXPECTED}")
    for folder, record in found:
        own = record.spec.path() if folder.relative_to(root).parts[0] != "frontier" else _probe(record)
        if not folder.as_posix().endswith(f"/{own}"):
            raise HarnessError(f"{folder}: found the record of {own}; {EXPECTED}")
    studies = sorted({record.spec.identity.study for _, record in found})
    if len(studies) > 1:
        raise HarnessError(
            f"{root}: found the records of {len(studies)} studies ({clip(', '.join(studies))}); {EXPECTED}"
        )
    return found


def _probe(record: Record) -> str:
    return f"{record.spec.run_hash()[:12]}/a{record.spec.identity.attempt}"


def _trials(folder: Path) -> list[tuple[Path, Record]]:
    """The trials of a tuned attempt. They are redacted first, because the attempt's own list holds their records
    too."""
    return [(path.parent, read_record(path)) for path in sorted(folder.glob(f"trial-*/{RECORD}"))]


def _own(folder: Path) -> list[Path]:
    """The attempt's files, listed in its record or not, without those of its trials, which have records of their
    own."""
    trials = tuple(f"{path.parent.name}/" for path in folder.glob(f"trial-*/{RECORD}"))
    return [folder / file.path for file in list_files(folder) if not file.path.startswith(trials)]


def _shared(folder: Path, record: Record) -> Record:
    redactor = Redactor()
    gone = [file.path for file in record.files if not (folder / file.path).is_file()]
    for path in _own(folder):
        if path.name.endswith(TEXT):
            _rewrite(path, redactor.line)
        elif not path.name.endswith(VERBATIM):
            path.unlink()
    if (folder / CLUSTER).is_file():
        facts = each_text(read_json(folder / CLUSTER), redactor.line)
        write_atomically(folder / CLUSTER, json.dumps(facts, indent=1) + "\n")
    notes = tuple(redactor.line(note) for note in record.notes)
    return structs.replace(
        record,
        diagnosis=_redacted(record.diagnosis, redactor),
        tries=tuple(structs.replace(t, diagnosis=_redacted(t.diagnosis, redactor)) for t in record.tries),
        environment=_described(record.environment, redactor),
        files=list_files(folder),
        notes=(*notes, *(f"{path}: gone before publication" for path in gone), NOTE),
    )


def each_text(value: Any, line: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: each_text(inner, line) for key, inner in value.items()}
    if isinstance(value, list):
        return [each_text(inner, line) for inner in value]
    return "".join(map(line, value.splitlines(keepends=True))) if isinstance(value, str) else value


def _redacted(diagnosis: Diagnosis, redactor: Redactor) -> Diagnosis:
    evidence = tuple(dataclasses.replace(e, text=redactor.line(e.text)) for e in diagnosis.evidence)
    return dataclasses.replace(diagnosis, evidence=evidence, sentence=redactor.line(diagnosis.sentence))


def _described(environment: Environment | None, redactor: Redactor) -> Environment | None:
    if environment is None:
        return None
    return structs.replace(environment, variables=each_text(environment.variables, redactor.line))


def _read(path: Path) -> bytes:
    raw = path.read_bytes()
    if not path.name.endswith(".gz"):
        return raw
    try:
        return gzip.decompress(raw)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise HarnessError(f"{path}: not a whole .gz file: {error}; remove it to publish without it") from None


def _rewrite(path: Path, line: Callable[[str], str]) -> None:
    raw = _read(path)
    text = "".join(line(part) for part in raw.decode("utf-8", "replace").splitlines(keepends=True)).encode()
    if text == raw:
        return
    write_atomically(path, gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text)
