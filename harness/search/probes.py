"""`python -m harness frontier`: run the probes that find the largest size that fits, and write down what they found."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.contract import exitcodes
from harness.contract.codec import decode
from harness.contract.errors import SpecError
from harness.contract.frontier import (
    Bounds,
    Frontier,
    FrontierSpec,
    Over,
    Predict,
    Probe,
    Rung,
    read_frontier_plan,
    read_one_spec,
)
from harness.contract.outcome import outcome
from harness.contract.spec import RunSpec
from harness.contract.variables import refuse_secrets
from harness.search.ladders import search
from harness.supervisor import folder
from harness.supervisor.run import execute, exit_status
from harness.supervisor.say import say
from harness.supervisor.signals import Cancelled

RESULT = "frontier.json"
ATTEMPTS = 2
"""Launches of one ladder when an outcome like preemption, which a retry can help, ended the first."""


def frontier(
    path: Path,
    out: Path,
    over: Over | None,
    bounds: Callable[[Over], Bounds],
    budget_s: float,
    predict: Predict,
    given: Sequence[str] = (),
) -> int:
    """Find the frontier of a spec, or all frontiers of a plan; returns the exit status.

    `over` and `bounds` are for a spec. A plan sets its own and is refused when options for them are `given`. Whatever
    does not fit into the budget is left for the next call.
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
            _find(wanted, out / wanted.folder, until_s, predict)
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
    protocol = dataclasses.replace(spec.protocol, ladder_over=axis)
    return FrontierSpec(spec=dataclasses.replace(spec, protocol=protocol), bounds=bounds(axis))


def _find(wanted: FrontierSpec, out: Path, until_s: float, predict: Predict) -> None:
    try:
        found = search(wanted.spec, wanted.bounds, predict, lambda probe: _execute(probe, out, until_s))
    except Cancelled as error:
        if time.monotonic() < until_s:
            raise
        say(f"{_where(wanted)}: left out: {error}; a second call goes on from here")
        return
    folder.write_atomically(out / RESULT, json.dumps(found.to_json(), indent=1) + "\n")
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


def _execute(spec: RunSpec, out: Path, until_s: float) -> Probe:
    """Run one probe, or take the record of an earlier call."""
    sizes = ", ".join(map(str, spec.protocol.ladder))
    say(f"probing {spec.protocol.ladder_over} {sizes}")
    for attempt in range(1, ATTEMPTS + 1):
        again = dataclasses.replace(spec, identity=dataclasses.replace(spec.identity, attempt=attempt))
        place = f"{spec.run_hash()[:12]}/a{attempt}"
        # What an earlier call has found costs no time.
        if time.monotonic() >= until_s and folder.finished(out / place, again) is None:
            raise Cancelled("no time is left")
        record = execute(again, out / place, None, until_s=until_s)
        if record.outcome == "ok" or not outcome(record.outcome).retry_helps:
            break
    rungs = (record.measured.frontier if record.measured else None) or []
    return Probe(
        folder=place,
        ladder=spec.protocol.ladder,
        outcome=record.outcome,
        wall_s=record.wall_s,
        rungs=tuple(decode(Rung, rung, "measured.frontier") for rung in rungs),
    )
