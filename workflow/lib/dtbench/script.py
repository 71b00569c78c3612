"""What the workflow's scripts share: from Snakemake's object to a study and its folder."""

import gc
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtbench.results.rediagnose import mend_diagnoses
from dtbench.study.matrix import Matrix, load_matrix
from harness.contract.errors import HarnessError
from harness.contract.files import write_atomically

STAMPS = ("tables", "document")
"""Rules whose outputs targets of other names (`report`, `aggregate`) also write, unseen by Snakemake."""


def stamp_of(rule: str, results: Path) -> Path:
    """The output of a rule that says of which study and platforms its other outputs are: `Matrix.digest`."""
    return results / "logs" / f"{rule}.stamp"


def drop_stamps(matrix: Matrix, results: Path) -> None:
    """Before another study's outputs are written over: without its stamp a rule makes its outputs again."""
    for stamp in (stamp_of(rule, results) for rule in STAMPS):
        if stamp.is_file() and stamp.read_bytes().strip() != matrix.digest.encode():
            stamp.unlink()


def run(snakemake: Any, work: Callable[[Matrix, Path], object]) -> None:
    """Do a rule's work on its study; what goes wrong is said in one line, the traceback goes to the rule's log."""
    # One pass over the records: nothing of what it makes is garbage before the process ends.
    gc.disable()
    study = snakemake.params.study
    try:
        matrix, results = load_matrix(study["path"], Path(study["root"])), Path(study["results"])
        drop_stamps(matrix, results)
        mend_diagnoses(matrix, results)
        work(matrix, results)
        # A figure that is asked for because an old report linked to it, of which there is nothing to draw any more.
        for figure in snakemake.output.get("figures") or ():
            Path(figure).touch()
        if stamp := snakemake.output.get("stamp"):
            write_atomically(Path(stamp), matrix.digest + "\n")
    except HarnessError as error:
        sys.exit(str(error))
    except Exception as error:
        said, log = f"{type(error).__name__}: {error}", snakemake.log[0]
        try:
            Path(log).write_text(traceback.format_exc(), encoding="utf-8")
        except OSError as refused:
            sys.exit(f"{said}; the traceback could not be kept: {refused}")
        sys.exit(f"{said}; the traceback is in {log}")
