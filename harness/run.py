"""`python -m harness run`: from a spec file to a delivered record and an exit status."""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.contract import exitcodes
from harness.contract.codec import read_json
from harness.contract.errors import DeliveryError, HarnessError, SpecError
from harness.contract.record import Record
from harness.contract.spec import RunSpec, parse_spec
from harness.contract.variables import refuse_secrets
from harness.delivery import reference
from harness.process import adopt_orphans
from harness.supervisor import folder
from harness.supervisor.attempt import Attempt
from harness.supervisor.nodes.follower import NodeLost, follow
from harness.supervisor.nodes.leader import Nodes
from harness.supervisor.nodes.link import Place, find_place
from harness.supervisor.processes import Cancelled, Signals
from harness.supervisor.progress import Teller, say, summary, title

if TYPE_CHECKING:
    from harness.delivery.upload import Bucket

GRACE_VARIABLE, GRACE_S = "HARNESS_GRACE_S", 15.0
"""Seconds from SIGTERM until a Spot node is gone, unless its pool grants more; the record must be delivered by then."""
START_PATIENCE_S = 20.0
DELIVERY_PATIENCE_S = 900.0
LOGS_PATIENCE_S = 10.0
"""How long a node that has lost node 0 uploads its logs: all nodes end within a minute of the loss."""
PLANS = {"specs": "batch PLAN OUTROOT", "frontiers": "frontier PLAN OUT"}
"""The one key of a plan file -> the command that works through it."""


def run(
    spec_path: Path, out: Path, upload: str | None, node_rank: int | None = None, rendezvous: str | None = None
) -> int:
    """Run one spec and return the exit status of `harness/contract/exitcodes.py`.

    `node_rank` and `rendezvous` (HOST or HOST:PORT of node 0) say which node of several this is.
    """

    def work() -> int:
        spec = read_one_spec(spec_path)
        refuse_secrets(spec.environment)
        place = find_place(spec, node_rank, rendezvous, os.environ)
        try:
            if place is not None and place.rank > 0:
                return _follow(spec, out.resolve(), place, upload)
            record = execute(spec, out, upload, place=place)
        except (Cancelled, NodeLost) as error:
            if upload is None:
                raise
            say(f"{error}: another pod must do the work")
            return exitcodes.PREEMPTED
        return _status(record, upload)

    return exit_status(work)


def read_one_spec(path: Path) -> RunSpec:
    """Read a spec file, as `read_spec`, but for a plan file raise a SpecError that names the command for it."""
    plain = read_json(path)
    refuse_plan(path, plain)
    try:
        return parse_spec(plain)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def refuse_plan(path: Path, plain: Any) -> None:
    """Refuse a plan where a spec or another plan is expected, naming the command for it. Raises SpecError."""
    for key, command in PLANS.items():
        if isinstance(plain, dict) and key in plain:
            raise SpecError(
                f'{path}: found a plan of `{command.split()[0]}` ({{"{key}": [...]}}); work through it with '
                f"`python -m harness {command}`"
            )


def exit_status(work: Callable[[], int]) -> int:
    """Do `work` and turn what it raises into the exit status and a message for it."""
    try:
        return work()
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return exitcodes.CONFIG
    except DeliveryError as error:
        print(f"error: {error}", file=sys.stderr)
        return exitcodes.DELIVERY
    except HarnessError as error:
        print(f"error: {error}; no record was written", file=sys.stderr)
        return exitcodes.INTERNAL
    except Exception:
        traceback.print_exc()
        print("error: the supervisor itself failed; no record was written", file=sys.stderr)
        return exitcodes.INTERNAL


def _follow(spec: RunSpec, out: Path, place: Place, upload: str | None) -> int:
    with Signals() as signals:
        bucket = _bucket(upload, signals)
        # A pod that is created again after node 0 has delivered would wait for node 0 in vain.
        if bucket and _delivered_before(bucket, spec):
            return exitcodes.RECORD_DELIVERED
        adopt_orphans()
        try:
            return follow(spec, out, place, signals)
        except NodeLost:
            if bucket and _delivered_before(bucket, spec):
                return exitcodes.RECORD_DELIVERED
            if bucket:
                pod = os.environ.get("HARNESS_POD_NAME") or "pod"
                bucket.leave_logs(out / f"node-{place.rank}", f"nodes/{place.rank}/{pod}", LOGS_PATIENCE_S)
            raise


def execute(
    spec: RunSpec, out: Path, upload: str | None = None, until_s: float | None = None, place: Place | None = None
) -> Record:
    """Run a spec in `out`, write its record and deliver it; a finished attempt is not run again.

    `until_s` (monotonic time) is for a caller with a budget: when it passes, or a signal comes, the
    attempt is left unfinished and Cancelled raised. Raises SpecError when `out` belongs to another spec,
    DeliveryError when the record cannot be written or uploaded.
    """
    out = out.resolve()
    place = place or find_place(spec, None, None, os.environ)
    if place is not None and place.rank > 0:
        raise SpecError(
            f"platform {spec.platform.name}: this process is node {place.rank}; start it with `harness run`, because "
            "only node 0 works through a list"
        )
    with Signals() as signals, folder.locked(out, signals), _others(spec, place, upload) as nodes:
        bucket = _bucket(upload, signals)
        record = folder.finished(out, spec)
        if record is not None:
            say(f"{out}: already finished: {summary(record)}")
            if lost := folder.unsound(out, record):
                say(f"{out}: of its files these are gone or changed: {', '.join(lost)}; its numbers are in the record")
                record = folder.without(record, lost)
        else:
            delivered = bucket and _delivered_before(bucket, spec)
            if delivered:
                say(f"{upload}: already delivered: {summary(delivered)}")
                return delivered
            adopt_orphans()
            record = _new_record(spec, out, bucket, signals, until_s, nodes)
        if bucket:
            _deliver(bucket, out, record, signals)
        reference.leave(record, out, bucket)
        if nodes:
            nodes.dismiss(_status(record, upload))
        return record


def _others(spec: RunSpec, place: Place | None, upload: str | None) -> contextlib.AbstractContextManager[Nodes | None]:
    return contextlib.nullcontext() if place is None else Nodes(spec, place, dict(os.environ))


def _status(record: Record, upload: str | None) -> int:
    return exitcodes.PREEMPTED if upload and record.outcome == "preemption" else exitcodes.RECORD_DELIVERED


def _new_record(
    spec: RunSpec,
    out: Path,
    bucket: "Bucket | None",
    signals: Signals,
    until_s: float | None,
    nodes: Nodes | None,
) -> Record:
    folder.prepare(out, spec)
    say(f"run {title(spec)}")
    notes: list[str] = []
    teller, pod = Teller(spec), 1
    if bucket:
        from harness.delivery.upload import ProgressUploader

        pod = _announce(bucket, notes)
        uploader = ProgressUploader(bucket, spec, pod)
        teller.listen(uploader.take)
        uploader.start()
    if note := reference.hand_over(spec, out, bucket):
        notes.append(note)
    attempt = Attempt(
        spec=spec, out=out, signals=signals, teller=teller, until_s=until_s, pod=pod, notes=notes, nodes=nodes
    )
    record = attempt.run()
    if bucket:
        uploader.stop()
    if until_s is not None and (signals.cancelled or attempt.cut):
        raise Cancelled("the budget ran out" if attempt.cut else "a signal came")
    folder.write_record(out, record)
    say(f"{summary(record)} ({record.wall_s:.1f} s)")
    return record


def deliver_result(upload: str, name: str, text: str) -> None:
    """Upload a result that is one object, for example of a search. Raises DeliveryError."""
    from harness.delivery.upload import Bucket

    Bucket(upload).put_result(name, text, DELIVERY_PATIENCE_S)


def _bucket(upload: str | None, signals: Signals) -> "Bucket | None":
    if upload is None:
        return None
    from harness.delivery.upload import Bucket

    return Bucket(upload, lambda: signals.cancelled is not None)


def _delivered_before(bucket: "Bucket", spec: RunSpec) -> Record | None:
    from harness.delivery.upload import hopeless

    try:
        return bucket.delivered(spec, START_PATIENCE_S)
    except DeliveryError as error:
        if hopeless(error):
            raise
        return None


def _announce(bucket: "Bucket", notes: list[str]) -> int:
    from harness.delivery.upload import hopeless

    try:
        return bucket.announce(START_PATIENCE_S)
    except DeliveryError as error:
        if hopeless(error):
            raise
        notes.append("the bucket did not answer at the start; the number of this pod is not known")
        say(f"{error}; going on, to try again at the end")
        return 1


def _deliver(bucket: "Bucket", out: Path, record: Record, signals: Signals) -> None:
    say(folder.RECORD_LINE + folder.one_line(record))
    patience_s = DELIVERY_PATIENCE_S
    if signals.received_s is not None:
        grace_s = float(os.environ.get(GRACE_VARIABLE) or GRACE_S)
        patience_s = grace_s - 1 - (time.monotonic() - signals.received_s)
    bucket.deliver(out, record, patience_s)
    say(f"delivered to {bucket.url}")
