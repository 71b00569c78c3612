"""What the workflow's scripts share: from Snakemake's object to a study and its folder."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.matrix import Matrix, load_matrix
from harness.contract.errors import HarnessError


def run(snakemake: Any, work: Callable[[Matrix, Path], object]) -> None:
    """Do a rule's work on its study; what goes wrong is said in one line, the traceback goes to the rule's log."""
    study = snakemake.params.study
    try:
        work(load_matrix(study["path"], Path(study["root"])), Path(study["results"]))
    except HarnessError as error:
        sys.exit(str(error))
    except Exception as error:
        Path(snakemake.log[0]).write_text(traceback.format_exc(), encoding="utf-8")
        sys.exit(f"{type(error).__name__}: {error}; the traceback is in {snakemake.log[0]}")
