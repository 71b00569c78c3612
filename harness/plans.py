"""`batch` and `frontier`: work through a plan file inside a time budget, without Snakemake."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from harness.contract import exitcodes
from harness.contract.codec import decode, read_json
from harness.contract.errors import DeliveryError, SpecError
from harness.contract.files import write_atomically
from harness.contract.frontier import Bounds, Frontier, FrontierPlan, FrontierSpec, Over, Predict, Probe
from harness.contract.outcome import outcome
from harness.contract.spec import RunSpec, parse_spec
from harness.contract.variables import refuse_secrets
from harness.run import deliver_result, execute, exit_status, read_one_spec, refuse_plan
from harness.search.ladders import search
from harness.supervisor import folder
from harness.supervisor.processes import Cancelled
from harness.supervisor.progress import say, summary

NO_TIME = "left out: no time is left"

RESULT = "frontier.json"
ATTEMPTS = 2
"""How often one ladder is launched when an outcome that a retry can cure, such as preemption, ended it."""


def batch(plan: Path, root: Path, budget_s: float, upload: str | None) -> int:
    """Run the plan's specs in order below `root`/<study>; returns the exit status."""
    return exit_status(lambda: Batch(read_plan(plan), root, time.monotonic() + budget_s, upload).run())


class Batch:
    """Runs the specs that fit into the time left. Specs that were cut short or left out have no record; the next call
    runs them.

    The runs of a pair start only when there is time for all of them, because another machine cannot finish the pair.
    """

    def __init__(self, groups: list[list[RunSpec]], root: Path, until_s: float, upload: str | None) -> None:
        self._groups, self._root, self._until_s, self._upload = groups, root, until_s, upload
        self._durations_s: dict[str, float] = {}
        self._status = exitcodes.RECORD_DELIVERED

    def run(self) -> int:
        """Run all specs that fit, print the table, return the exit status."""
        rows: list[tuple[RunSpec, str]] = []
        specs = [spec for group in self._groups for spec in group]
        try:
            for group in self._groups:
                left_out = self._no_room(group)
                for spec in group:
                    say(f"[{len(rows) + 1}/{len(specs)}] {spec.path()} ({self._left_s():.0f} s left)")
                    rows.append((spec, left_out or self._one(spec)))
        except Cancelled as error:
            rows.append((specs[len(rows)], f"cancelled: {error}"))
        rows += [(spec, "not begun") for spec in specs[len(rows) :]]
        if not rows:
            say("the plan holds no spec: there is nothing to run")
        for line in table(rows):
            say(line)
        return self._status

    def _no_room(self, group: list[RunSpec]) -> str | None:
        """The reason to leave out a whole pair; None if all its missing runs fit, or if only one of them is missing."""
        missing = [spec for spec in group if not (self._out(spec) / "record.json").exists()]
        expected_s = sum(map(self._expected_s, missing))
        if len(missing) < 2 or self._left_s() >= expected_s:
            return None
        return f"left out: its pair takes about {expected_s:.0f} s, {max(0.0, self._left_s()):.0f} s are left"

    def _one(self, spec: RunSpec) -> str:
        try:
            return self._run(spec)
        except SpecError as error:
            self._status = max(self._status, exitcodes.CONFIG)
            return f"refused: {error}"

    def _run(self, spec: RunSpec) -> str:
        out = self._out(spec)
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

    def _out(self, spec: RunSpec) -> Path:
        return self._root / spec.identity.study / spec.path()

    def _expected_s(self, spec: RunSpec) -> float:
        longest_s = max(self._durations_s.values(), default=0.0)
        return self._durations_s.get(spec.identity.config, longest_s)

    def _left_s(self) -> float:
        return self._until_s - time.monotonic()


def read_plan(plan: Path) -> list[list[RunSpec]]:
    """Specs of a plan in order, grouped: those of a pair in one list.

    A file holds {"specs": [...], "pairs": [[0, 1], ...]}, where a pair's positions follow one another; of a folder, the
    .json files by name are the specs. Raises SpecError.
    """
    if plan.is_dir():
        paths = sorted(plan.glob("*.json"))
        if not paths:
            raise SpecError(f"{plan}: found no .json file, expected one spec each")
        groups = [[read_one_spec(path)] for path in paths]
    else:
        groups = _read_list(plan)
    for spec in (spec for group in groups for spec in group):
        refuse_secrets(spec.environment)
    return groups


def table(rows: list[tuple[RunSpec, str]]) -> list[str]:
    """One line per spec: config, arm, repeat, how it ended."""
    cells = [(s.platform.name, s.identity.config, s.identity.arm, f"r{s.identity.repeat}", text) for s, text in rows]
    widths = [max((len(c[i]) for c in cells), default=0) for i in range(4)]
    return ["  ".join([*(c[i].ljust(widths[i]) for i in range(4)), c[4]]) for c in cells]


def _read_list(plan: Path) -> list[list[RunSpec]]:
    plain = read_json(plan)
    if isinstance(plain, dict) and "specs" not in plain:
        refuse_plan(plan, plain)
    if not isinstance(plain, dict) or plain.keys() - {"pairs"} != {"specs"} or not isinstance(plain["specs"], list):
        raise SpecError(f'{plan}: expected {{"specs": [spec, ...], "pairs": [[place, place], ...]}} and nothing else')
    specs = []
    for index, item in enumerate(plain["specs"]):
        try:
            specs.append(parse_spec(item))
        except SpecError as error:
            raise SpecError(f"{plan}: specs[{index}]: {error}") from None
    pairs = decode(tuple[tuple[int, ...], ...], plain.get("pairs", []), f"{plan}: pairs")
    groups, done = [], 0
    for pair in pairs:
        if not pair or pair != tuple(range(pair[0], pair[-1] + 1)) or not done <= pair[0] <= pair[-1] < len(specs):
            raise SpecError(f"{plan}: pairs: found {list(pair)}, expected rising positions that follow one another")
        groups += [[spec] for spec in specs[done : pair[0]]] + [specs[pair[0] : pair[-1] + 1]]
        done = pair[-1] + 1
    return groups + [[spec] for spec in specs[done:]]


def frontier(
    path: Path,
    out: Path,
    over: Over | None,
    bounds: Callable[[Over], Bounds],
    budget_s: float,
    predict: Predict,
    given: Sequence[str] = (),
    upload: str | None = None,
) -> int:
    """Find the frontier of a spec, or all frontiers of a plan; returns the exit status.

    `over` and `bounds` are for a spec. A plan sets its own and is refused when options for them are `given`. Whatever
    does not fit into the budget is left for the next call. With `upload`, for a spec alone, probes and result go there,
    and probes that are there already are not run again.
    """
    until_s = time.monotonic() + budget_s

    def work() -> int:
        frontiers = _wanted(path, over, bounds, given)
        for wanted in frontiers:
            refuse_secrets(wanted.spec.environment)
        if not frontiers:
            say("the plan holds no frontier: there is nothing to find")
        for index, wanted in enumerate(frontiers, start=1):
            if len(frontiers) > 1:
                say(f"[{index}/{len(frontiers)}] {wanted.folder}")
            try:
                _find(wanted, out / wanted.folder, until_s, predict, upload)
            except Cancelled as error:
                if upload is None:
                    raise
                say(f"{error}: another pod must go on")
                return exitcodes.PREEMPTED
        return exitcodes.RECORD_DELIVERED

    return exit_status(work)


def _wanted(
    path: Path, over: Over | None, bounds: Callable[[Over], Bounds], given: Sequence[str]
) -> tuple[FrontierSpec, ...]:
    frontiers = read_frontier_plan(path)
    if frontiers is None:
        return (_of_spec(read_one_spec(path), over, bounds),)
    if given:
        raise SpecError(
            f"{path}: found a plan together with {', '.join(given)}, which are for a single spec: each frontier of a "
            "plan sets its own; leave them out, or change the study and write its plan again"
        )
    return frontiers


def _of_spec(spec: RunSpec, over: Over | None, bounds: Callable[[Over], Bounds]) -> FrontierSpec:
    axis = over or spec.protocol.ladder_over
    protocol = structs.replace(spec.protocol, ladder_over=axis)
    return FrontierSpec(spec=structs.replace(spec, protocol=protocol), bounds=bounds(axis))


def _find(wanted: FrontierSpec, out: Path, until_s: float, predict: Predict, upload: str | None) -> None:
    try:
        found = search(wanted.spec, wanted.bounds, predict, lambda probe: _execute(probe, out, until_s, upload))
    except Cancelled as error:
        if time.monotonic() < until_s:
            raise
        say(f"{_where(wanted)}: left out: {error}; a second call goes on from here")
        return
    text = json.dumps(found.to_json(), indent=1) + "\n"
    write_atomically(out / RESULT, text)
    if upload:
        deliver_result(upload, RESULT, text)
    say(sentence(found))


def _where(wanted: FrontierSpec) -> str:
    identity, over = wanted.spec.identity, wanted.spec.protocol.ladder_over
    return f"{wanted.spec.platform.name} {identity.config} {identity.arm} {over}"


def sentence(found: Frontier) -> str:
    """The result in one line."""
    expected = "" if found.predicted is None else f", predicted {found.predicted}"
    fail = "" if found.smallest_fail is None else f", {found.smallest_fail} does not fit"
    largest = "none" if found.largest_fit is None else str(found.largest_fit)
    where = f"{found.platform} {found.config} {found.arm}"
    return f"{where}: largest {found.over} {largest}{fail}{expected} ({found.ended}, {len(found.probes)} processes)"


def _execute(spec: RunSpec, out: Path, until_s: float, upload: str | None) -> Probe:
    """Run one probe, or take the record of an earlier call."""
    sizes = ", ".join(map(str, spec.protocol.ladder))
    say(f"probing {spec.protocol.ladder_over} {sizes}")
    for attempt in range(1, ATTEMPTS + 1):
        again = structs.replace(spec, identity=structs.replace(spec.identity, attempt=attempt))
        place = f"{spec.run_hash()[:12]}/a{attempt}"
        # Records of an earlier call cost no time.
        if time.monotonic() >= until_s and folder.finished(out / place, again) is None:
            raise Cancelled("no time is left")
        # A pod's only budget is the life of its Job; execute() handles the last seconds of a pod.
        record = execute(again, out / place, f"{upload}/{place}" if upload else None, None if upload else until_s)
        if upload and record.outcome == "preemption":
            raise Cancelled("the pod is taken away")
        if record.outcome == "ok" or not outcome(record.outcome).retry_helps:
            break
    return Probe(
        folder=place,
        ladder=spec.protocol.ladder,
        outcome=record.outcome,
        wall_s=record.wall_s,
        rungs=(record.measured.frontier if record.measured else None) or (),
    )


def read_frontier_plan(path: Path) -> tuple[FrontierSpec, ...] | None:
    """The frontiers of a plan file; None for any other file. Raises SpecError naming the file."""
    plain = read_json(path)
    if not isinstance(plain, dict) or "frontiers" not in plain:
        refuse_plan(path, plain)
        return None
    try:
        return decode(FrontierPlan, plain).frontiers
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
