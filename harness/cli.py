"""The commands that work beside the GPUs, without the client. Each imports only what it needs."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.delivery.check import Checked

COMMANDS = {
    "run": "run one spec and write its record",
    "batch": "run many specs one after the other, within a time budget",
    "frontier": "find the largest micro-batch or the longest sequence that fits",
    "diagnose": "find in logs which rank failed first, and why",
    "share": "redact records before you publish them",
    "setup": "compile DeepSpeed's CPU operators once",
}


def parser(prog: str = "python -m harness") -> argparse.ArgumentParser:
    """Arguments of every command."""
    top = argparse.ArgumentParser(prog=prog, description="Run training on this machine and record how it ended.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    _add_run(commands)

    batch = commands.add_parser(
        "batch",
        help=COMMANDS["batch"],
        description="Run the specs of PLAN in order below OUTROOT/<study>, as the workflow would. Finished ones are "
        "skipped. Runs that do not fit into the budget are left for the next call.",
    )
    batch.add_argument("plan", type=Path, metavar="PLAN", help='{"specs": [...]} in a JSON file, or a folder of specs')
    batch.add_argument("out", type=Path, metavar="OUTROOT", help="the results folder, above the studies")
    batch.add_argument(
        "--budget-s", type=_budget_s, default=float("inf"), metavar="N", help="seconds in all (default: no limit)"
    )
    batch.add_argument("--upload", metavar="gs://BUCKET/PREFIX", help="deliver each run to PREFIX/<study>/<run>")

    _add_frontier(commands)

    setup = commands.add_parser(
        "setup",
        help=COMMANDS["setup"],
        description="Compile them into TORCH_EXTENSIONS_DIR, by default a folder of this Python environment.",
    )
    setup.add_argument("-v", "--verbose", action="store_true", help="show the compiler's output")

    share = commands.add_parser(
        "share",
        help=COMMANDS["share"],
        description="Redact hosts, users, paths and tokens in one study's or one attempt's logs, in place, and in "
        "what its records quote of them; remove what was made from them and can be made again, such as the report.",
    )
    share.add_argument(
        "folder", type=_folder, metavar="FOLDER", help="one study's results, for example results/quick, or one attempt"
    )

    commands.add_parser("diagnose", add_help=False, help=COMMANDS["diagnose"])
    return top


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help=COMMANDS["run"],
        description="Launch the ranks of one spec, watch them and write OUT/record.json, whatever happens to them.",
        epilog="exit status: 0 a record was delivered, whatever the outcome; 64 the spec cannot be run; "
        "70 the supervisor itself failed; 74 the record could not be delivered; 143, with --upload only, the node was "
        "taken away and another pod must do the work",
    )
    run.add_argument("spec", type=Path, metavar="SPEC", help="the fully resolved spec, a JSON file")
    run.add_argument("out", type=Path, metavar="OUT", help="folder for the record and the files beside it")
    run.add_argument("--upload", metavar="gs://BUCKET/PREFIX", help="copy the folder there, the record last")
    run.add_argument(
        "--node-rank",
        type=int,
        metavar="N",
        help="which node of several this is, from 0 (default: HARNESS_NODE_RANK, JOB_COMPLETION_INDEX, SLURM_NODEID)",
    )
    run.add_argument(
        "--rendezvous",
        metavar="HOST[:PORT]",
        help="where node 0 listens, the same on all nodes (default: HARNESS_RENDEZVOUS, or Slurm's first node)",
    )


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError(
            "found an empty name, expected one study's results, for example results/quick, or one attempt's folder"
        )
    return Path(text)


def _budget_s(text: str) -> float:
    try:
        budget_s = float(text)
    except ValueError:
        budget_s = math.nan
    if budget_s >= 0:
        return budget_s
    raise argparse.ArgumentTypeError(
        f"found {text!r}, expected seconds, 0 or more; 0 starts nothing new, inf (or no --budget-s) sets no end"
    )


def _add_frontier(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    frontier = commands.add_parser(
        "frontier",
        help=COMMANDS["frontier"],
        description="Try ladders of rising sizes, one probe (a process group) per ladder, until the largest size "
        "that fits is known; write OUT/frontier.json and one attempt folder per probe. A second call continues.",
    )
    frontier.add_argument(
        "spec", type=Path, metavar="SPEC", help="the spec of any run of the config, or a study's frontier-plan.json"
    )
    frontier.add_argument("out", type=Path, metavar="OUT", help="folder for the result and the probes' folders")
    frontier.add_argument("--over", choices=("micro_batch", "sequence_length"), help="default: the spec's ladder_over")
    frontier.add_argument("--limit", type=int, metavar="N", help="largest size to try (default: 64; 32768 tokens)")
    frontier.add_argument("--resolution", type=int, metavar="N", help="step of the sizes (default: 1; 256 tokens)")
    frontier.add_argument("--rungs", type=int, metavar="N", help="most sizes per probe (default: 8)")
    frontier.add_argument("--processes", type=int, metavar="N", help="most probes (default: 6)")
    frontier.add_argument(
        "--budget-s", type=_budget_s, default=float("inf"), metavar="N", help="seconds in all (default: no limit)"
    )
    frontier.add_argument(
        "--upload", metavar="gs://BUCKET/PREFIX", help="bring probes and result of a single spec there"
    )


FOR_ONE_SPEC = ("over", "limit", "resolution", "rungs", "processes")
"""Options of `frontier` that a plan file sets itself, per frontier."""


def _frontier(options: argparse.Namespace) -> int:
    from harness.contract.frontier import search_bounds
    from harness.measure.ledger import predicted_peak_bytes
    from harness.plans import frontier

    return frontier(
        options.spec,
        options.out,
        options.over,
        lambda over: search_bounds(over, options.limit, options.resolution, options.rungs, options.processes),
        options.budget_s,
        predicted_peak_bytes,
        [f"--{name}" for name in (*FOR_ONE_SPEC, "upload") if getattr(options, name) is not None],
        options.upload,
    )


def _share(folder: Path) -> int:
    from harness.contract import exitcodes
    from harness.contract.errors import HarnessError
    from harness.delivery.share import share

    try:
        print(f"{share(folder)} records redacted below {folder}")
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return exitcodes.CONFIG
    return 0


def check(folder: Path) -> "Checked":
    """Check shared records and print what was found; its `exit_status` is 0, 1 or 2 (nothing to check)."""
    from harness.delivery.check import check, text

    checked = check(folder)
    print(text(checked, folder))
    return checked


def main(arguments: Sequence[str] | None = None, prog: str = "python -m harness") -> int:
    """Parse and dispatch; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["diagnose"]:
        from harness.diagnosis.cli import main as diagnose

        return diagnose(given[1:], prog=f"{prog} diagnose")
    options = parser(prog).parse_args(given)
    if options.command == "setup":
        from harness.supervisor.extensions import setup

        return setup(options.verbose)
    if options.command == "frontier":
        return _frontier(options)
    if options.command == "share":
        return _share(options.folder)
    if options.command == "batch":
        from harness.plans import batch

        return batch(options.plan, options.out, options.budget_s, options.upload)
    from harness.run import run

    return run(options.spec, options.out, options.upload, options.node_rank, options.rendezvous)
