"""Exec a command that dies with its parent: `python -m harness.supervisor.guard PARENT_PID COMMAND...`.

The supervisor starts the launcher through this file, because PR_SET_PDEATHSIG must be asked for by the
process that is to die, and doing so between fork and exec is unsafe beside the supervisor's threads.
"""

import os
import sys

from harness.supervisor.deathsig import die_with_parent


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
