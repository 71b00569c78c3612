"""Start the supervisor on one spec in this very process, so that it never outlives the Snakemake that asked for it."""

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main(spec: str, record: str) -> None:
    # Killed, not asked to stop: a stopped supervisor writes a record, and a killed client wants to start over.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A file without a name: nothing to clean up, nothing inside the folder that the supervisor owns.
    descriptor = os.memfd_create("spec.json", 0)
    os.write(descriptor, spec.encode())
    command = [sys.executable, "-m", "harness", "run", f"/proc/self/fd/{descriptor}", str(Path(record).parent)]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main(*sys.argv[1:])
