"""Find in logs which rank failed first, and why."""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.contract.outcome import Diagnosis, Evidence
from harness.diagnosis.advice import advise
from harness.diagnosis.folder import Source, any_logs, diagnose_source
from harness.diagnosis.inert import plain
from harness.diagnosis.reading.stream import decompress
from harness.diagnosis.redact import Redactor

REDACT_HELP = "do not diagnose: print the log without hosts, addresses, users, paths and tokens"
NO_INPUT = 66
"""Exit status when an input cannot be read (EX_NOINPUT)."""
NO_LOG = (
    "The folder holds no log: neither launcher.log and rank-*.log nor, anywhere below it, another file that may be one "
    "(hidden ones, heartbeat-*, exit-*, flight-recorder dumps and binary files such as .pt and .bin are none)."
)


def main(argv: Sequence[str] | None = None, prog: str = "python -m harness diagnose") -> int:
    """Diagnose and print; 0 when there is a diagnosis (`unknown` is one), 66 when an input cannot be read."""
    arguments = _parser(prog).parse_args(argv)
    try:
        if arguments.redact:
            return _redact(arguments.source)
        source = Source(
            path=None if arguments.source == "-" else Path(arguments.source),
            stdin=sys.stdin.buffer if arguments.source == "-" else None,
            exit_code=arguments.exit_code,
            pod=_json(arguments.pod),
            events=_json(arguments.events),
            flight_recorder=arguments.flight_recorder,
        )
        found = _named_empty(source, diagnose_source(source))
    except OSError as error:
        name = plain(str(error.filename or arguments.source))
        print(f"diagnose: {name}: {error.strerror}; give a log, a folder of logs or - for standard input",
              file=sys.stderr)  # fmt: skip
        return NO_INPUT
    except ValueError as error:
        print(f"diagnose: {plain(str(error))}", file=sys.stderr)
        return NO_INPUT
    try:
        print(json.dumps(as_json(found), indent=2) if arguments.json else as_text(found), flush=True)
    except BrokenPipeError:
        # The reader (perhaps `head`) has closed the pipe; the interpreter's flush at exit must not fail on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _named_empty(source: Source, found: Diagnosis) -> Diagnosis:
    """The diagnosis; for a folder without logs it says so, because no log is not an empty log."""
    if found.outcome != "unknown" or found.evidence or source.path is None or not source.path.is_dir():
        return found
    return found if any_logs(source.path) else dataclasses.replace(found, sentence=NO_LOG)


def as_json(found: Diagnosis) -> dict[str, Any]:
    """The one object that --json prints; every text in it is free of control characters."""
    return {
        "outcome": found.outcome,
        "confidence": found.confidence,
        "culprit_rank": found.culprit_rank,
        "evidence": [{"file": plain(e.file), "line": e.line, "text": plain(e.text)} for e in found.evidence],
        "runner_up": found.runner_up,
        "sentence": plain(found.sentence),
    }


def as_text(found: Diagnosis) -> str:
    """The content of --json as text for a terminal."""
    rank = f", culprit rank {found.culprit_rank}" if found.culprit_rank is not None else ""
    lines = [f"{found.outcome} ({found.confidence} confidence{rank})", f"  {plain(found.sentence)}"]
    lines += [f"  {_place(e)}: {plain(e.text)}" for e in found.evidence]
    if found.runner_up is not None:
        lines.append(f"  or else: {found.runner_up}")
    if found.outcome != "ok":
        lines.append(f"  next: {advise(found)}")
    return "\n".join(lines)


def _place(evidence: Evidence) -> str:
    return plain(f"{evidence.file}:{evidence.line}" if evidence.line else evidence.file)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument(
        "source", type=_named, metavar="FILE|DIR|-", help="a log (text, gz, zst), folder of logs, attempt, or -"
    )
    parser.add_argument("--exit-code", type=int, help="exit code of the launcher or container, if known")
    parser.add_argument("--pod", type=Path, help="the pod as JSON (kubectl get pod NAME -o json)")
    parser.add_argument("--events", type=Path, help="its events as JSON (kubectl get events -o json)")
    parser.add_argument("--flight-recorder", type=Path, metavar="DIR", help="folder of flight-recorder dumps")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--redact", action="store_true", help=REDACT_HELP)
    return parser


def _named(source: str) -> str:
    if not source:
        raise argparse.ArgumentTypeError("expected a log, a folder of logs or -, found an empty name")
    return source


def _json(path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON as kubectl -o json prints it, found: {error}") from None


def _redact(source: str) -> int:
    redactor = Redactor()
    with contextlib.nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as handle:
        for raw in decompress(handle):
            sys.stdout.write(redactor.line(raw.decode("utf-8", "replace")))
    return 0
