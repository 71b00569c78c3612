"""`dtbench site FOLDER... --out DIR`: a static site over any number of studies, from their records alone.

One page per model and GPU, newest study first. Every number links to the spec of its cell, every table to a plan of its
study's runs and, where this checkout has it, to the study file. Nothing is loaded from a network.
"""

import itertools
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from dtbench.report.render import render
from dtbench.results import numbers as c
from dtbench.results.cells import CellResult
from dtbench.results.runs import Run, read_runs
from dtbench.results.sides import cell_of
from dtbench.results.stats import Summary
from dtbench.study.cell import Cell
from dtbench.study.matrix import load_matrix
from harness.contract.errors import SpecError
from harness.contract.files import write_atomically
from harness.contract.units import GB

INDEX = "site.json"
"""Lists the files of the site, so that the next call removes its own files and nobody else's."""


class Verdict(NamedTuple):
    """What `dtbench check` said of a folder."""

    records: int
    problems: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One cell."""

    config: str
    dagger: bool
    """It counts only with a remedy."""
    spec: str
    """The spec of its first run, below the site."""
    tokens_per_s: Summary | None
    peak_gb: float | None
    mfu_percent: float | None
    joules_per_token: float | None
    finished: int
    runs: int
    machines: str
    outcome: str
    sentence: str
    """Why it did not finish."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Cells that share a study, a platform, an arm and a workload."""

    platform: str
    arm: str
    workload: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Study:
    """One folder of results."""

    name: str
    """Unique within the site."""
    runs: tuple[Run, ...]
    newest: datetime | None
    """Start of its newest run; None for a cited source, which does not say."""
    verdict: Verdict
    versions: str
    source: str | None
    files: dict[str, str]
    """What a reader may call it -> file below the site."""

    @property
    def date(self) -> str:
        """Of the newest run, for a reader."""
        return self.newest.date().isoformat() if self.newest else "date not given"


def write_site(folders: Iterable[Path], out: Path, root: Path, verdicts: Mapping[Path, Verdict]) -> list[str]:
    """Write the site and return its files. Raises SpecError for a folder without records, or an `out` not our own."""
    _clear(out)
    files: dict[str, str] = {}
    studies: list[Study] = []
    for folder in folders:
        studies.append(_study(folder, root, verdicts[folder], {s.name for s in studies}, files))
    studies.sort(key=lambda s: (s.newest is None, -(s.newest.timestamp() if s.newest else 0), s.name))
    pages: dict[tuple[str, str], dict[str, list[Table]]] = {}
    for study in studies:
        for key, tables in _tables(study, files).items():
            pages.setdefault(key, {})[study.name] = tables
    by_name = {study.name: study for study in studies}
    listed = []
    for (model, gpu), found in pages.items():
        name = f"{_free(_slug(f'{model}-{gpu}'), {file.removesuffix('.html') for file in files})}.html"
        parts = [(by_name[study], tables) for study, tables in found.items()]
        files[name] = render("site-page.html.j2", {"title": f"{model} on {gpu}", "studies": parts})
        listed.append({"file": name, "model": model, "gpu": gpu, **_counts(parts)})
    files["index.html"] = render("site-index.html.j2", {"title": "Training runs", "pages": listed, "studies": studies})
    files[INDEX] = json.dumps({"files": sorted(files)}, indent=1) + "\n"
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / name, text)
    return sorted(files)


def _clear(out: Path) -> None:
    """Remove the files of an earlier call."""
    if out.is_dir() and any(out.iterdir()):
        try:
            names = json.loads((out / INDEX).read_text(encoding="utf-8"))["files"]
            paths = [path for name in names if (path := (out / str(name)).resolve()).is_relative_to(out.resolve())]
        except (OSError, ValueError, KeyError, TypeError):
            raise SpecError(f"{out}: found files and no {INDEX}; expected an empty folder or an earlier site") from None
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in ("studies", "specs"):
            if (out / folder).is_dir() and not any((out / folder).iterdir()):
                shutil.rmtree(out / folder)


def _study(folder: Path, root: Path, verdict: Verdict, taken: set[str], files: dict[str, str]) -> Study:
    runs = [run for run in read_runs(folder) if run.newest]
    if not runs:
        raise SpecError(f"{folder}: found no record of a run; expected one study's results, for example results/NAME")
    own = runs[0].spec.identity.study
    name = _free(own, taken)
    specs = [run.spec.to_json() for run in sorted(runs, key=lambda run: run.spec.identity.repeat)]
    files[f"studies/{name}.json"] = json.dumps({"specs": specs}, indent=1) + "\n"
    told = {"plan": f"studies/{name}.json"}
    if text := _study_file(own, root, runs):
        files[f"studies/{name}.yaml"] = text
        told["study file"] = f"studies/{name}.yaml"
    if (folder / "report.html").is_file():
        files[f"studies/{name}.html"] = (folder / "report.html").read_text(encoding="utf-8")
        told["report"] = f"studies/{name}.html"
    records = [run.newest.record for run in runs if run.newest]
    times = [datetime.fromisoformat(record.started_at) for record in records if record.started_at]
    versions = [record.environment.versions for record in records if record.environment]
    named = {lib: sorted({v[lib] for v in versions if lib in v}) for lib in ("torch", "deepspeed", "transformers")}
    return Study(
        name=name,
        runs=tuple(runs),
        newest=max(times, default=None),
        verdict=verdict,
        versions=", ".join(f"{lib} {' and '.join(found)}" for lib, found in named.items() if found),
        source=records[0].source,
        files=told,
    )


def _study_file(name: str, root: Path, runs: list[Run]) -> str | None:
    """The text of config/NAME.yaml if it still gives these runs."""
    path = root / "config" / f"{name}.yaml"
    if not path.is_file():
        return None
    try:
        known = {spec.run_hash() for spec in load_matrix(name, root).runs}
    except SpecError:
        return None
    return path.read_text(encoding="utf-8") if known >= {run.spec.run_hash() for run in runs} else None


def _tables(study: Study, files: dict[str, str]) -> dict[tuple[str, str], list[Table]]:
    """(Model, GPU) -> the study's tables for it."""
    cells: dict[str, list[Run]] = {}
    for run in study.runs:
        cells.setdefault(cell_of(run.spec), []).append(run)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for runs in cells.values():
        spec = runs[0].spec
        key = (spec.model.name, spec.platform.accelerator, spec.platform.name, spec.identity.arm, _workload(runs[0]))
        groups.setdefault(key, []).append(_row(runs, files))
    found: dict[tuple[str, str], list[Table]] = {}
    for (model, gpu, platform, arm, workload), rows in sorted(groups.items()):
        rows.sort(key=lambda row: (-row.tokens_per_s.median if row.tokens_per_s else 0.0, row.config))
        table = Table(platform=platform, arm=arm, workload=workload, rows=tuple(rows))
        found.setdefault((model, gpu), []).append(table)
    return found


def _workload(run: Run) -> str:
    data = run.spec.data
    parts = [f"sequence {data.sequence_length}", f"micro-batch {data.micro_batch}"]
    parts += [f"gradient accumulation {data.gradient_accumulation}"] if data.gradient_accumulation > 1 else []
    parts += ["activation checkpointing"] if run.spec.model.activation_checkpointing else []
    return ", ".join(parts)


def _row(runs: list[Run], files: dict[str, str]) -> Row:
    first = min(runs, key=lambda run: run.spec.identity.repeat).spec
    cell = Cell(platform=first.platform.name, config=first.identity.config, arm=first.identity.arm, spec=first)
    result = CellResult(cell=cell, runs=tuple(runs))
    spec = f"specs/{first.run_hash()[:12]}.json"
    files[spec] = json.dumps(first.to_json(), indent=1) + "\n"
    peak, mfu = result.peak(), result.median(c.mfu)
    machines = sorted({run.machine for run in runs if run.machine})
    dead = next((run.newest.diagnosis.sentence for run in runs if run.newest and run.outcome != "ok"), "")
    return Row(
        config=first.identity.config,
        dagger=result.dagger,
        spec=spec,
        tokens_per_s=result.summary(c.tokens_per_s),
        peak_gb=None if peak is None else peak / GB,
        mfu_percent=None if mfu is None else mfu * 100,
        joules_per_token=result.median(c.joules_per_token),
        finished=len(result.finished),
        runs=len(runs),
        machines=", ".join(machines) or "-",
        outcome=result.outcome,
        sentence="" if result.finished else dead,
    )


def _counts(parts: list[tuple[Study, list[Table]]]) -> dict[str, Any]:
    rows = [row for _, tables in parts for table in tables for row in table.rows]
    return {
        "studies": len(parts),
        "configs": len({row.config for row in rows}),
        "runs": sum(row.runs for row in rows),
        "date": parts[0][0].date,
    }


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken."""
    names = (name if n == 1 else f"{name}-{n}" for n in itertools.count(1))
    return next(found for found in names if found not in taken)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
