"""The client side: from a study to runs, and from their records to the report. No torch, ever.

In a notebook: `import dtbench; runs = dtbench.load("results/quick")`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

__all__ = ["columns", "load"]


def load(*folders: "str | Path") -> "pd.DataFrame":
    """All runs of one or more studies' results folders: a row a run, units in the names of the columns.

    Works on records alone. Numbers are empty for a run that does not count. Raises SpecError for a folder without
    records and for a record that cannot be read.
    """
    from dtbench.results.frame import load as read

    return read(*folders)


def columns() -> "pd.DataFrame":
    """Every column of `load` with its type and its description."""
    from dtbench.results.frame import columns as read

    return read()
