"""What the Snakemake rules ask: the options on the command line, and the spec, priority and GPUs of each attempt."""

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtbench.results.store import is_current, missing, scan, sources, wanted, write_plan
from dtbench.slurm import slurm_request
from dtbench.study.cell import at
from dtbench.study.matrix import Matrix
from harness.contract.errors import SpecError, clip_path, nearest
from harness.contract.outcome import OUTCOMES
from harness.contract.spec import RunSpec
from harness.measure.nvml import list_gpus

OPTIONS = ("study", "rerun", "results")
"""Keys of `snakemake --config`."""
CONFIG_RESULTS = "--config results="
"""How the folder of all results is given to Snakemake; `dtbench` has `--results`."""


def export_path(libraries: Sequence[str]) -> None:
    """Let every job import the checkout's own code, installed or not."""
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in libraries]
    os.environ["PYTHONPATH"] = os.pathsep.join([*libraries, *known])


def relax_collector() -> None:
    """Let Python's garbage collector look at new objects only, and less often.

    Snakemake keeps all that it has imported and all jobs to its end: walking them again and again took a sixth of a
    call's CPU time at 1,000 runs, and found nothing.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The parsed `--config` of a call."""

    study: str
    """Name of a study in config/, or a path to one."""
    rerun: frozenset[str]
    """Outcomes whose runs get their next attempt."""
    results: str
    """Folder of all results."""


def parse_config(config: Mapping[str, Any]) -> Options:
    """Check the `--config` keys. Raises SpecError for a key that nobody reads."""
    for key in config:
        if key not in OPTIONS:
            raise SpecError(f"--config {key}=...: unknown key; {nearest(key, OPTIONS)}")
        # An unset shell variable must not start the default study.
        if config[key] in (None, "", [], {}):
            raise SpecError(f"--config {key}=: found nothing after the '='; give a value or leave the key out")
    results = str(config.get("results", "results"))
    _check_folder(results)
    return Options(study=str(config.get("study", "quick")), rerun=parse_rerun(config.get("rerun")), results=results)


def _check_folder(results: str, option: str = CONFIG_RESULTS) -> None:
    """Refuse a results folder that cannot be created: it is a file, lies below a file, or has a name that the system
    refuses."""
    for place in (Path(results), *Path(results).parents):
        try:
            if place.is_dir():
                return
            found = "is a file" if place.exists() else None
        except OSError as error:
            found = f"cannot be a folder: {error.strerror}"
        if found:
            raise SpecError(
                f"{option}{clip_path(results)}: {clip_path(place)} {found}; give a folder, which is made if it is new"
            )


def check_writable(results: str, option: str = CONFIG_RESULTS) -> None:
    """Refuse a folder of a study that cannot be written to. Raises SpecError."""
    place = next(p for p in (Path(results), *Path(results).resolve().parents) if p.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        raise SpecError(
            f"{clip_path(place)}: found a folder that cannot be written to; give another with {option}FOLDER, "
            "a copy of this one to make its report anew"
        )


def check_gpus(specs: Iterable[RunSpec]) -> None:
    """Refuse runs on this machine that need more GPUs than it has: each would fail by itself. Raises SpecError."""
    platforms = [spec.platform for spec in specs if spec.platform.device == "cuda"]
    if not platforms:
        return
    most, found = max(platforms, key=lambda platform: platform.ranks_per_node), len(list_gpus())
    if found < most.ranks_per_node:
        raise SpecError(
            f"platform {most.name}: found {found} GPUs on this machine, expected {most.ranks_per_node}; start it with "
            "--profile slurm or gke, or write a study for this machine with `dtbench init MODEL`"
        )


def parse_rerun(value: Any) -> frozenset[str]:
    """Outcomes that `rerun=` selects. Raises SpecError for a word that is no outcome, `failed` or `all`."""
    if value is None or value == "":
        return frozenset()
    words = value if isinstance(value, list | tuple) else str(value).split(",")
    outcomes: set[str] = set()
    allowed = ("failed", "all", *OUTCOMES)
    for word in words:
        name = str(word).strip()
        if name not in allowed:
            raise SpecError(f"rerun={value}: found {name!r}; {nearest(name, allowed)}")
        if name in ("failed", "all"):
            outcomes |= OUTCOMES.keys() - ({"ok"} if name == "failed" else set())
        else:
            outcomes.add(name)
    return frozenset(outcomes)


def selected(matrix: Matrix, results: Path, rerun: frozenset[str]) -> frozenset[str]:
    """Folders of the runs that `rerun=` asks for again: by the outcomes that the report shows."""
    if not rerun:
        return frozenset()
    # A call without `rerun=` needs nothing that reads records and logs.
    from dtbench.results.runs import all_runs, load_runs

    runs = all_runs(load_runs(matrix, results))
    again = frozenset(run.spec.path().rpartition("/")[0] for run in runs if run.outcome in rerun)
    # A job that another Snakemake started reads all this again; the line was printed already.
    if not again and "--mode" not in sys.argv:
        print(_nothing_selected(rerun, Counter(run.outcome for run in runs)), file=sys.stderr)
    return again


def _nothing_selected(rerun: frozenset[str], ended: Counter[str]) -> str:
    """The message when `rerun=` matches no run: what was asked for, and what there is."""
    there = ", ".join(f"{outcome} ({number})" for outcome, number in sorted(ended.items()))
    asked = "failed" if len(rerun) == len(OUTCOMES) - 1 else "all" if len(rerun) == len(OUTCOMES) else None
    return f"rerun={asked or ','.join(sorted(rerun))} selects no run; the study's runs are: {there}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The wanted attempts by their path below the study's folder, in the order to launch them."""

    specs: dict[str, RunSpec]
    missing: dict[str, RunSpec]
    """Those that have no record yet."""
    reported: bool
    """Whether the report is of the records as they are, and all its files are there."""
    _places: dict[str, int]

    @classmethod
    def of(cls, matrix: Matrix, results: Path, rerun: frozenset[str]) -> "Plan":
        """Look at the results tree and decide which attempt of each run is wanted."""
        found = scan(results, matrix.runs)
        specs = wanted(found, results, selected(matrix, results, rerun))
        reported = is_current(results, sources(matrix, found, results))
        return cls(specs, missing(results, specs), reported, {path: place for place, path in enumerate(specs)})

    def spec(self, path: str) -> dict[str, Any]:
        """The spec of an attempt, as a rule parameter."""
        return self._spec(path).to_json()

    def priority(self, path: str) -> int:
        """Snakemake's priority: earlier in the plan, higher."""
        return len(self.specs) - self._places.get(path, len(self.specs))

    def slurm(self, path: str) -> dict[str, int | str]:
        """What a Slurm job of the attempt asks for."""
        return slurm_request(self._spec(path))

    def _spec(self, path: str) -> RunSpec:
        """The spec of an attempt, the wanted one of its run or another.

        A scheduler's node plans anew before it starts its job, when records of other runs may have changed which
        attempts are wanted: a reference that came meanwhile decides what is a parity mismatch.
        """
        if path in self.specs:
            return self.specs[path]
        run, _, attempt = path.rpartition("/a")
        spec = next(spec for known, spec in self.specs.items() if known.rpartition("/a")[0] == run)
        return at(spec, attempt=int(attempt))


def plan(matrix: Matrix, results: Path, rerun: frozenset[str]) -> None:
    """Write what is missing of a study below the folder of all results. Raises SpecError if it is not writable."""
    own = results / matrix.study.name
    _check_folder(str(own), "--results ")
    check_writable(str(own), "--results ")
    write_plans(matrix, own, rerun)


def write_plans(matrix: Matrix, results: Path, rerun: frozenset[str]) -> None:
    """Write what is missing, most wanted first, for `dtbench batch` and `dtbench frontier`."""
    write_plan(results, Plan.of(matrix, results, rerun).missing, matrix.groups)
    if matrix.study.frontier:
        from dtbench.report.frontier_rows import write_frontier_plan

        write_frontier_plan(matrix, results)
