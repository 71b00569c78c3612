"""`python -m harness batch`: run many specs one after the other inside a time budget, without Snakemake."""

import time
from pathlib import Path

from harness.contract import exitcodes
from harness.contract.codec import read_json
from harness.contract.errors import DeliveryError, SpecError
from harness.contract.frontier import read_one_spec, refuse_plan
from harness.contract.spec import RunSpec, parse_spec
from harness.contract.variables import refuse_secrets
from harness.supervisor import folder
from harness.supervisor.run import execute, exit_status
from harness.supervisor.say import say, summary
from harness.supervisor.signals import Cancelled

NO_TIME = "left out: no time is left"


def batch(plan: Path, root: Path, budget_s: float, upload: str | None) -> int:
    """Run the plan's specs in order below `root`/<study>; returns the exit status."""
    return exit_status(lambda: Batch(read_plan(plan), root, time.monotonic() + budget_s, upload).run())


class Batch:
    """Runs that fit into the time left; what was cut short or left out has no record, so the next call runs it."""

    def __init__(self, specs: list[RunSpec], root: Path, until_s: float, upload: str | None) -> None:
        self._specs, self._root, self._until_s, self._upload = specs, root, until_s, upload
        self._durations_s: dict[str, float] = {}
        self._status = exitcodes.RECORD_DELIVERED

    def run(self) -> int:
        """Run all that fits, print the table, return the exit status."""
        rows: list[tuple[RunSpec, str]] = []
        for index, spec in enumerate(self._specs, start=1):
            say(f"[{index}/{len(self._specs)}] {spec.path()} ({self._left_s():.0f} s left)")
            try:
                rows.append((spec, self._one(spec)))
            except SpecError as error:
                self._status = max(self._status, exitcodes.CONFIG)
                rows.append((spec, f"refused: {error}"))
            except Cancelled as error:
                rows.append((spec, f"cancelled: {error}"))
                break
        rows += [(spec, "not begun") for spec in self._specs[len(rows) :]]
        if not rows:
            say("the plan holds no spec: there is nothing to run")
        for line in table(rows):
            say(line)
        return self._status

    def _one(self, spec: RunSpec) -> str:
        out = self._root / spec.identity.study / spec.path()
        known = folder.finished(out, spec) is not None
        expected_s = self._expected_s(spec)
        if not known and self._left_s() < expected_s:
            left_s = max(0.0, self._left_s())
            return f"left out: takes about {expected_s:.0f} s, {left_s:.0f} s are left" if left_s else NO_TIME
        place = f"{self._upload.rstrip('/')}/{spec.identity.study}/{spec.path()}" if self._upload else None
        try:
            record = execute(spec, out, place, until_s=self._until_s)
        except DeliveryError as error:
            self._status = max(self._status, exitcodes.DELIVERY)
            return f"not delivered: {error}"
        if not known and record.wall_s is not None:
            self._durations_s[spec.identity.config] = record.wall_s
        return summary(record)

    def _expected_s(self, spec: RunSpec) -> float:
        longest_s = max(self._durations_s.values(), default=0.0)
        return self._durations_s.get(spec.identity.config, longest_s)

    def _left_s(self) -> float:
        return self._until_s - time.monotonic()


def read_plan(plan: Path) -> list[RunSpec]:
    """Specs of a plan, in order: {"specs": [...]} in a file, or the .json files of a folder by name."""
    if plan.is_dir():
        paths = sorted(plan.glob("*.json"))
        if not paths:
            raise SpecError(f"{plan}: found no .json file, expected one spec each")
        specs = [read_one_spec(path) for path in paths]
    else:
        specs = _read_list(plan)
    for spec in specs:
        refuse_secrets(spec.environment)
    return specs


def table(rows: list[tuple[RunSpec, str]]) -> list[str]:
    """One line per spec: config, arm, repeat, how it ended."""
    cells = [(s.platform.name, s.identity.config, s.identity.arm, f"r{s.identity.repeat}", text) for s, text in rows]
    widths = [max((len(c[i]) for c in cells), default=0) for i in range(4)]
    return ["  ".join([*(c[i].ljust(widths[i]) for i in range(4)), c[4]]) for c in cells]


def _read_list(plan: Path) -> list[RunSpec]:
    plain = read_json(plan)
    if isinstance(plain, dict) and "specs" not in plain:
        refuse_plan(plan, plain)
    if not isinstance(plain, dict) or list(plain) != ["specs"] or not isinstance(plain["specs"], list):
        raise SpecError(f'{plan}: expected {{"specs": [spec, ...]}} and nothing else')
    specs = []
    for index, item in enumerate(plain["specs"]):
        try:
            specs.append(parse_spec(item))
        except SpecError as error:
            raise SpecError(f"{plan}: specs[{index}]: {error}") from None
    return specs
