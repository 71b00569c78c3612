"""The command `dtbench`: studies through Snakemake, stored records, and the harness's own commands.

Each command imports only what it uses.
"""

import argparse
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from dtbench.arguments import amount, share
from harness import cli as harness

STUDIES = {
    "check": "list a study's cells and runs, starting nothing; or check the records of a folder",
    "start": "run what is missing of a study, then write its report",
    "report": "rebuild a study's report from its stored records",
    "plan": "write a study's missing runs for `dtbench batch`, for a machine without Snakemake",
}
TARGETS = {"start": [], "report": ["report"]}
"""Command that becomes Snakemake -> its targets; none: the default target."""
BEFORE = {
    "fit": "predict which configs of a model fit on which GPUs",
    "init": "write a study of the configs worth measuring for a model, on this machine or given cards",
}
CLOUD = {
    "gke": "set up, show or remove what studies need on GKE: namespace, rights, bucket, machines to buy",
    "prices": "read today's prices from Google's billing catalogue into config/prices.yaml",
}
MODULES = {
    "fit": "dtbench.fit.command",
    "init": "dtbench.init",
    "gke": "dtbench.cloud.command",
    "prices": "dtbench.cloud.catalogue",
}
"""Command of BEFORE or CLOUD -> its module, with `add_arguments` and a function of the command's name."""
RECORDS = {
    "compare": "find the cells that got slower between two sets of records; for CI",
    "load": "write all runs as one table, CSV or Parquet, with a data dictionary",
    "site": "write a static site over any number of studies, one page per model and GPU",
}
HELP = "\n".join(
    (
        "dtbench finds out which sharding engine and setting trains a model fastest, what it costs and if it fits.",
        "\nusage: dtbench COMMAND ...        dtbench COMMAND --help        dtbench --version",
        "\nstudies (start and report call Snakemake, which works without this command too):",
        *(f"  {name:<10}{text}" for name, text in STUDIES.items()),
        "\nbefore you rent GPUs:",
        *(f"  {name:<10}{text}" for name, text in BEFORE.items()),
        "\nbefore the first run on GKE:",
        *(f"  {name:<10}{text}" for name, text in CLOUD.items()),
        "\nstored records:",
        *(f"  {name:<10}{text}" for name, text in RECORDS.items()),
        "\non the machine with the GPUs (also as python -m harness COMMAND):",
        *(f"  {name:<10}{text}" for name, text in harness.COMMANDS.items()),
    )
)
_STUDY_HELP = "a study in config/ by name, or a path to one (default: quick)"
_CHECK = (
    "List the cells and runs of a study and start nothing. With a FOLDER of records, for example one that somebody "
    "published with `dtbench share`: check every schema and hash, the promises of the arms, the numbers against the "
    "ranks' results and against the limits that the same run measured, and that no text is private."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status. What the system refuses and Ctrl-C end it in one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _main(given)
        print(end="", flush=True)
        return status
    except BrokenPipeError:
        # The reader, for example `head`, has what it wanted; Python would complain about the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        if given[0] in harness.COMMANDS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror or error}", file=sys.stderr)
        return 74


def _main(given: list[str]) -> int:
    if given[:1] and given[0] in harness.COMMANDS:
        return harness.main(given, prog="dtbench")
    if not given or given[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if given[0] == "--version":
        print(f"dtbench {import_module('importlib.metadata').version('distributed-training-bench')}")
        return 0
    own, extra = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    # Only a command that becomes Snakemake has arguments to pass on to it.
    options = _parser(next(iter(own), "")).parse_args(own if own[:1] and own[0] in TARGETS else given)
    from harness.contract import exitcodes
    from harness.contract.errors import HarnessError

    try:
        if options.command in MODULES:
            work = getattr(import_module(MODULES[options.command]), options.command)
            return int(work(options, _root()))
        if options.command in RECORDS:
            return {"compare": _compare, "load": _load, "site": _site}[options.command](options)
        return _check(options.study) if options.command == "check" else _study(options, extra)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return exitcodes.CONFIG


def _parser(command_given: str) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="dtbench", usage="dtbench COMMAND ...")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="dtbench")
    for name, text in (BEFORE | CLOUD).items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if command_given == name:
            import_module(MODULES[name]).add_arguments(command)
    for name, text in STUDIES.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_argument("study", nargs="?", default="quick", metavar="STUDY", help=_STUDY_HELP)
        if name == "check":
            command.usage, command.description = "dtbench check [STUDY | FOLDER]", _CHECK
            command.epilog = "exit status for a folder: 0 everything holds; 1 something does not; 2 nothing to check"
            continue
        command.usage = f"dtbench {name} [OPTIONS] [STUDY]"
        if name in TARGETS:
            command.usage += " [-- SNAKEMAKE ARGUMENTS]"
            command.add_argument("--profile", default="local", help="where runs start: local (default), slurm or gke")
        command.add_argument("--results", metavar="FOLDER", help="folder of all results (default: results)")
        command.add_argument("-n", "--dry-run", action="store_true", help="show what would be done; do nothing")
        if name != "report":
            command.add_argument("--max-usd", type=amount, help="refuse when the bill is higher, or cannot be known")
            command.add_argument("--rerun", metavar="OUTCOMES", help="new attempts for these runs, for example: failed")
    _add_compare(commands)
    _add_load(commands)
    _add_site(commands)
    return top


def _add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = RECORDS["compare"]
    command = commands.add_parser(
        "compare",
        help=text,
        description=f"{text[0].upper()}{text[1:]}. A side is a study's results folder, for example results/quick, or "
        "some of its records: FOLDER@commit=1a2b3c4, FOLDER@torch=2.11.0, FOLDER@machine=m1.",
        epilog="exit status: 0 nothing is slower by more than the limit and the noise; 1 something is; 2 nothing could "
        "be compared; 64 a folder or a record cannot be read",
    )
    command.add_argument("base", metavar="BASE", help="the records to compare with")
    command.add_argument("new", metavar="NEW", help="the records to judge")
    command.add_argument(
        "--max-slowdown", type=share, default=0.05, metavar="SHARE", help="accepted loss of speed (default: 5%%)"
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_load(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = RECORDS["load"]
    command = commands.add_parser(
        "load",
        help=text,
        description=f"{text[0].upper()}{text[1:]} beside it (.schema.json). A row a run, units in column names. "
        "Without --csv and --parquet the table goes to the terminal. In Python: dtbench.load(FOLDER).",
    )
    command.add_argument("folders", nargs="+", metavar="FOLDER", help="one study's results, for example results/quick")
    command.add_argument("--csv", type=Path, metavar="OUT", help="write a CSV file")
    command.add_argument("--parquet", type=Path, metavar="OUT", help="write a Parquet file; needs pyarrow (170 MB)")


def _add_site(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = RECORDS["site"]
    command = commands.add_parser(
        "site",
        help=text,
        description=f"{text[0].upper()}{text[1:]}, newest first, each number with the spec that repeats it. "
        "Records are checked first, and the site says what the check found.",
    )
    command.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="one study's results")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="an empty folder, or an earlier site")


def _site(options: argparse.Namespace) -> int:
    from dtbench.site import Verdict, write_site

    checks = {folder: harness.check(folder) for folder in options.folders}
    verdicts = {folder: Verdict(found.records, len(found.problems)) for folder, found in checks.items()}
    files = write_site(options.folders, options.out, _root(), verdicts)
    print(f"{options.out / 'index.html'}: {len(verdicts)} studies, {len(files)} files")
    return 0


def _load(options: argparse.Namespace) -> int:
    from dtbench.results.frame import load, to_csv, write

    table = load(*options.folders)
    if not (options.csv or options.parquet):
        sys.stdout.write(to_csv(table))
    for kind in ("csv", "parquet"):
        if path := getattr(options, kind):
            beside = write(table, path, kind)
            print(f"{path}: {len(table)} runs, {len(table.columns)} columns; {beside} describes them")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from dtbench.results.regression import compare, text
    from dtbench.results.sides import read_side

    found = compare(read_side(options.base), read_side(options.new), options.max_slowdown)
    if options.json:
        import json

        print(json.dumps(found.to_json(), indent=1))
    else:
        print(text(found))
    return found.exit_status


def _root() -> Path:
    """The checkout: the folder above the current one with a Snakefile, else the one that this file lies in."""
    from harness.contract.errors import HarnessError

    here, own = Path.cwd(), Path(__file__).resolve().parents[3]
    for folder in (here, *here.parents, own):
        if (folder / "Snakefile").is_file() and (folder / "workflow" / "lib" / "dtbench").is_dir():
            return folder
    raise HarnessError(f"{here}: found no Snakefile here or above; call dtbench inside a checkout of its repository")


def _check(study: str) -> int:
    from dtbench.study.families import check_families
    from dtbench.study.matrix import load_matrix

    root, folder = _root(), Path(study)
    if folder.is_dir() and not (root / "config" / f"{study}.yaml").is_file():
        return harness.check(folder).exit_status
    matrix = load_matrix(study, root)
    check_families(run.model for run in matrix.runs)
    runs = Counter((str(s.platform.name), str(s.identity.config), str(s.identity.arm)) for s in matrix.runs)
    print(f"{matrix.path}: study {matrix.study.name}, {len(matrix.cells)} cells, {len(matrix.runs)} runs")
    for cell in matrix.cells:
        count = runs[cell.platform, cell.config, cell.arm]
        reason = getattr(cell.exclusion, "reason", None)
        text = f"{count} runs" if cell.spec else f"not run: {reason}" if reason else "not run"
        print(f"  {cell.platform:<15} {cell.config:<23} {cell.arm:<9} {text}")
    return 0


def _study(options: argparse.Namespace, extra: list[str]) -> int:
    root, study = _root(), Path(options.study)
    # A path is the caller's; Snakemake looks from the checkout.
    name = str(study.resolve()) if study.suffix in (".yaml", ".yml") or len(study.parts) > 1 else options.study
    results = Path(options.results).resolve() if options.results else root / "results"
    return (_plan if options.command == "plan" else _snakemake)(name, root, results, options, extra)


def _plan(name: str, root: Path, results: Path, options: argparse.Namespace, extra: list[str]) -> int:
    """Print the bill and write the plan, without Snakemake: that takes longer to start than this for 1,000 runs."""
    from dtbench.bill import announce
    from dtbench.study.matrix import load_matrix
    from dtbench.workflow import parse_rerun, plan

    matrix, rerun = load_matrix(name, root), parse_rerun(options.rerun)
    announce(matrix, results, rerun, options.max_usd)
    if not options.dry_run:
        plan(matrix, results, rerun)
    return 0


def _snakemake(name: str, root: Path, results: Path, options: argparse.Namespace, extra: list[str]) -> int:
    """Become Snakemake with the profile and the study; does not return."""
    from dtbench.bill import PRINTED, announce
    from dtbench.study.here import refuse_here
    from dtbench.study.matrix import load_matrix
    from dtbench.workflow import parse_rerun

    config = {"study": name, "rerun": getattr(options, "rerun", None)}
    if options.results:
        config["results"] = str(results)
    # Files that the study names may be relative to where the caller is.
    environment = os.environ | {"DTBENCH_CALLER": str(Path.cwd())}
    words = [*TARGETS[options.command], *extra, *(["-n"] if options.dry_run else [])]
    if options.command != "report" and not [word for word in extra[:1] if not word.startswith("-")]:
        matrix = load_matrix(name, root)
        announce(matrix, results, parse_rerun(options.rerun), options.max_usd)
        environment[PRINTED] = "1"
        if Path(options.profile).name != "local":
            refuse_here(matrix.study.platforms, options.profile)
    pairs = [f"{key}={value}" for key, value in config.items() if value is not None]
    command = ["snakemake", "--profile", options.profile, *words, "--config", *pairs]
    print(shlex.join(command), flush=True)
    os.chdir(root)
    os.execve(sys.executable, [sys.executable, "-m", *command], environment)
