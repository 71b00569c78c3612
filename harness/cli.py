"""The command line: run, batch, setup, diagnose. Each command imports what it needs, so that all start fast."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """Arguments of every command."""
    top = argparse.ArgumentParser(prog="python -m harness", description="What runs beside the GPUs.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run one spec and leave a record",
        description="Launch the ranks of one spec, watch them and write OUT/record.json, whatever happens to them.",
        epilog="exit status: 0 a record was delivered, whatever the outcome; 64 the spec cannot be run; "
        "70 the supervisor itself failed; 74 the record could not be delivered",
    )
    run.add_argument("spec", type=Path, metavar="SPEC", help="the fully resolved spec, a JSON file")
    run.add_argument("out", type=Path, metavar="OUT", help="folder for the record and the files beside it")
    run.add_argument("--upload", metavar="gs://BUCKET/PREFIX", help="copy the folder there, the record last")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and dispatch; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    from harness.supervisor.run import run

    return run(options.spec, options.out, options.upload)
