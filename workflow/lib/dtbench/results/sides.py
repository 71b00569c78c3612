"""Two sets of runs to be compared: how they are named, which cells they share, and what differs around these."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from dtbench.results.runs import Attempt, Run, read_runs
from harness.contract.errors import SpecError, clip, nearest, show
from harness.contract.record import Record
from harness.contract.spec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One set of runs, as named on the command line."""

    name: str
    runs: tuple[Run, ...]


def read_side(text: str) -> Side:
    """Runs of FOLDER or FOLDER@KEY=VALUE, where KEY is `commit`, `machine` or a library of the record's versions.

    Raises SpecError for a folder without such runs.
    """
    # A folder's own name may hold an @.
    folder, _, choice = (text, "", "") if "@" not in text or Path(text).is_dir() else text.rpartition("@")
    key, _, value = choice.partition("=")
    if choice and not (key and value):
        raise SpecError(f"{text}: found {show(choice)} after @, expected KEY=VALUE, for example commit=1a2b3c4")
    own = key in ("", "machine")
    runs = read_runs(Path(folder), lambda record: own or _holds(record, key, value))
    runs = [run for run in runs if key != "machine" or run.machine == value]
    if not runs:
        raise SpecError(f"{text}: found no record {_lacking(read_runs(Path(folder)), key, value)}")
    return Side(name=text, runs=tuple(runs))


def _lacking(runs: list[Run], key: str, value: str) -> str:
    """What no run of a folder has, and what they have instead."""
    if not runs:
        return "of a run; expected PLATFORM/CONFIG/ARM/RUN/aN/record.json below it"
    places = [attempt.record.environment for run in runs for attempt in run.attempts if attempt.record.environment]
    known = {
        "commit": {place.git_commit for place in places if place.git_commit},
        "machine": {run.machine for run in runs if run.machine},
    }
    for name in sorted({name for place in places for name in place.versions}):
        known[name] = {place.versions[name] for place in places if name in place.versions}
    if key not in known:
        return f"that names {key!r}; {nearest(key, tuple(known))}"
    there = nearest(value, sorted(known[key])) if known[key] else f"no record of this folder has a {key}"
    return f"with {key} {value!r}; {there}"


def _holds(record: Record, key: str, value: str) -> bool:
    environment = record.environment
    if environment is None:
        return False
    if key == "commit":
        return (environment.git_commit or "").startswith(value)
    return environment.versions.get(key) == value


def cell_of(spec: RunSpec) -> str:
    """Hash of what two studies must share for their runs to be of one cell: all but study, repeat and attempt."""
    identity = structs.replace(spec.identity, study="any", repeat=1, attempt=1, reference=False)
    return structs.replace(
        spec, identity=identity, protocol=structs.replace(spec.protocol, reference_loss=None)
    ).run_hash()


def newest(side: Side) -> list[Attempt]:
    """The attempt that counts of every run."""
    return [run.newest for run in side.runs if run.newest]


def by_cell(side: Side) -> dict[str, list[Run]]:
    """Hash of a cell -> its runs."""
    found: dict[str, list[Run]] = {}
    for run in side.runs:
        found.setdefault(cell_of(run.spec), []).append(run)
    return found


def environment_differences(base: Side, new: Side) -> dict[str, tuple[str, str]]:
    """What the sides' records say of where they ran, where it differs."""
    facts = [[_facts(attempt.record) for attempt in newest(side)] for side in (base, new)]
    names = dict.fromkeys(name for side in facts for fact in side for name in fact)
    told = {n: tuple(", ".join(sorted({f.get(n, "unknown") for f in side})) for side in facts) for n in names}
    return {name: (values[0], values[1]) for name, values in told.items() if values[0] != values[1]}


def _facts(record: Record) -> dict[str, str]:
    environment = record.environment
    if environment is None:
        return {}
    host = {f"host {name}": str(value) for name, value in environment.host.items() if name != "boot"}
    variables = {f"variable {name}": clip(value) for name, value in environment.variables.items()}
    known = {"commit": environment.git_commit or "unknown", "device": environment.device_name or "unknown"}
    return known | environment.versions | host | variables


def unmatched(base: dict[str, list[Run]], new: dict[str, list[Run]]) -> Iterable[str]:
    """Cells of one side only; a cell of the same name on the other side shows what differs in the spec."""
    sides = (base, new)
    for side, name in enumerate(("BASE", "NEW")):
        other = {_label(runs[0].spec): runs[0].spec for key, runs in sides[1 - side].items() if key not in sides[side]}
        for key, runs in sides[side].items():
            if key not in sides[1 - side]:
                label, like = _label(runs[0].spec), other.get(_label(runs[0].spec))
                if like is None:
                    yield f"{label}: only in {name}"
                elif name == "BASE":
                    differ = ", ".join(_differences(runs[0].spec.to_json(), like.to_json()))
                    yield f"{label}: the specs differ in {differ}"


def _label(spec: RunSpec) -> str:
    return f"{spec.platform.name} {spec.identity.config} {spec.identity.arm}"


def _differences(a: Any, b: Any, key: str = "") -> Iterable[str]:
    """Dotted keys with both values where two specs differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in dict.fromkeys((*a, *b)):
            if key or name != "identity":
                yield from _differences(a.get(name), b.get(name), f"{key}.{name}" if key else name)
    elif a != b:
        yield f"{key} ({show(a)} to {show(b)})"
