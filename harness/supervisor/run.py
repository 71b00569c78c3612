"""`python -m harness run`: from a spec file to a delivered record and an exit status."""

import sys
import traceback
from pathlib import Path

from harness.contract import exitcodes
from harness.contract.errors import DeliveryError, SpecError
from harness.contract.record import Record
from harness.contract.spec import RunSpec, read_spec
from harness.supervisor import deathsig, folder
from harness.supervisor.attempt import Attempt
from harness.supervisor.environment import refuse_secrets
from harness.supervisor.say import Teller, say, summary, title
from harness.supervisor.signals import Signals


def run(spec_path: Path, out: Path, upload: str | None) -> int:
    """Run one spec and return the exit status of `harness/contract/exitcodes.py`."""
    try:
        spec = read_spec(spec_path)
        refuse_secrets(spec.environment)
        execute(spec, out)
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return exitcodes.CONFIG
    except DeliveryError as error:
        print(f"error: {error}", file=sys.stderr)
        return exitcodes.DELIVERY
    except Exception:
        traceback.print_exc()
        print("error: the supervisor itself failed; no record was written", file=sys.stderr)
        return exitcodes.INTERNAL
    return exitcodes.RECORD_DELIVERED


def execute(spec: RunSpec, out: Path) -> Record:
    """Run a spec in `out` and write its record; a finished attempt is left alone and its record returned.

    Raises SpecError when `out` belongs to another spec, DeliveryError when the record cannot be written.
    """
    out = out.resolve()
    with Signals() as signals, folder.locked(out):
        done = folder.finished(out, spec)
        if done is not None:
            say(f"{out}: already finished: {summary(done)}")
            return done
        deathsig.adopt_orphans()
        folder.prepare(out, spec)
        say(f"run {title(spec)}")
        record = Attempt(spec=spec, out=out, signals=signals, teller=Teller(spec)).run()
        folder.write_record(out, record)
        say(f"{summary(record)} ({record.wall_s:.1f} s)")
        return record
