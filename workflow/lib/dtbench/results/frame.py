"""Runs as one flat table, a row a run: what `dtbench.load` returns and runs.csv holds.

Most columns are fields of the record and take type and description from the record's JSON Schema. Numbers stand only
in rows of runs that count: a run that died or broke a promise has no speed.
"""

import functools
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dtbench.results import numbers as c
from dtbench.results.runs import Run, read_runs
from dtbench.study.schema import DIALECT, schema_of
from harness.contract.errors import SpecError
from harness.contract.files import write_atomically
from harness.contract.record import Record

if TYPE_CHECKING:
    import pandas as pd

DTYPES = {"integer": "Int64", "number": "float64", "boolean": "boolean"}
"""JSON type -> pandas type that can be empty; anything else is text."""
PARQUET = "parquet needs pyarrow, which is not installed: pip install 'distributed-training-bench[parquet]'"


class _Own(NamedTuple):
    """A column that is computed and so has its description here."""

    type: str
    text: str
    read: Callable[[Run], Any]


def _counted(read: Callable[[Record], float | None]) -> Callable[[Run], float | None]:
    """A number of the record of a run that counts."""
    return lambda run: read(run.newest.record) if run.newest and run.outcome == "ok" else None


def _number(text: str, read: Callable[[Record], float | None]) -> _Own:
    return _Own("number", text, _counted(read))


_SHARE = "as a share of a step of the profiled pass."
_FIELDS = {
    "study": "spec.identity.study",
    "platform": "spec.platform.name",
    "config": "spec.identity.config",
    "arm": "spec.identity.arm",
    "repeat": "spec.identity.repeat",
}
_RUN = {
    "outcome": _Own("string", "How the run ended, by today's rules; `missing` without a record.", lambda r: r.outcome),
    "attempts": _Own("integer", "Attempts that left a record.", lambda r: len(r.attempts)),
    "tries": _Own("integer", "Process groups that were launched, over all attempts.", lambda r: r.tries),
    "remedy": _Own(
        "string",
        "Remedy of the try that gave the numbers.",
        lambda r: r.newest.record.tries[-1].remedy if r.newest and r.newest.record.tries else None,
    ),
    "parity_difference": _Own(
        "number",
        "Largest relative difference of the first losses to the reference's.",
        lambda r: r.parity.difference if r.parity else None,
    ),
    "machine": _Own("string", "Machine that ran it, numbered within the study: m1, m2.", lambda r: r.machine),
}
_NUMBERS = {
    "peak_bytes": _number(
        "Peak memory of the fullest rank, in bytes: the allocator's on a GPU, resident memory on a CPU.", c.peak_bytes
    ),
    "state_bytes_per_parameter": _number(
        "Parameters, gradients and optimizer of the fullest rank, in bytes per parameter of the model.",
        c.state_bytes_per_parameter,
    ),
    "nccl_share": _number("Sum of NCCL kernel time over sum of kernel time, in the profiled pass.", c.nccl_share),
    "gpu_busy_s": _number(
        "Seconds of a step in which the GPU is busy, from the profiled pass; older records count waits for other ranks.",
        c.gpu_busy_s,
    ),
    "compute_share": _number(f"Time of compute kernels, {_SHARE}", c.profile_value("shares.compute")),
    "comm_exposed_share": _number(
        f"Communication that no compute hides, {_SHARE}", c.profile_value("shares.comm_exposed")
    ),
    "copy_exposed_share": _number(f"Copies that nothing hides, {_SHARE}", c.profile_value("shares.copy_exposed")),
    "idle_share": _number(f"Time without any kernel, {_SHARE}", c.profile_value("shares.idle")),
    "last_loss": _number("Loss after the last step.", c.last_loss),
    "joules_per_token": _number("Energy of all GPUs in the timed window, per token.", c.joules_per_token),
    "watts_per_gpu": _number("Mean power of a GPU over the timed window.", c.watts_per_gpu),
    "gpu_hours_per_million_tokens": _number("GPUs times hours for a million tokens.", c.gpu_hours_per_million_tokens),
    "matmul_flops_per_s": _number(
        "Speed of a large matrix multiplication, measured before the run.",
        lambda record: c.number(record.measured and record.measured.preflight, "matmul", "flops_per_s"),
    ),
    "all_reduce_bus_bytes_per_s": _number(
        "Bus bandwidth of a large all-reduce, measured before the run.",
        lambda record: c.number(record.measured and record.measured.preflight, "all_reduce", "bus_bytes_per_s"),
    ),
    "predicted_peak_bytes": _number(
        "Peak memory of a rank as the ledger predicts it, in bytes.",
        lambda record: c.number(record.measured and record.measured.ledger, "device_peak_bytes"),
    ),
}
_MEASURED = (
    *("tokens_per_s", "tokens_per_s_per_gpu", "step_time_s", "step_time_p50_s", "step_time_p95_s", "tokens_per_step"),
    *("mfu", "dispatch_s", "energy_j", "sm_mhz", "throttle", "flags", "parameters"),
)
_MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes", "host_rss_peak_bytes", "alloc_retries")
_SPEC = {
    "model": "spec.model.name",
    "sequence_length": "spec.data.sequence_length",
    "micro_batch": "spec.data.micro_batch",
    "gradient_accumulation": "spec.data.gradient_accumulation",
    "activation_checkpointing": "spec.model.activation_checkpointing",
    "accelerator": "spec.platform.accelerator",
    "world_size": "spec.platform.world_size",
    "nodes": "spec.platform.nodes",
    "interconnect": "spec.platform.interconnect",
    "memory_cap_gib": "spec.platform.memory_cap_gib",
    "engine": "spec.engine.name",
    "engine_settings": "spec.engine.settings",
    "optimizer": "spec.optimizer.implementation",
    **{f"numerics_{name}": f"spec.numerics.{name}" for name in ("master", "compute", "reduce", "optimizer_state")},
    "warmup_steps": "spec.protocol.warmup_steps",
    "timed_steps": "spec.protocol.timed_steps",
}
_ORIGIN = {
    "started_at": "started_at",
    "wall_s": "wall_s",
    "source": "source",
    "device_name": "environment.device_name",
    "git_commit": "environment.git_commit",
    "spec_hash": "spec_hash",
}
_VERSIONS = {
    f"{name}_version": _Own(
        "string", f"Version of {name} that ran.", functools.partial(lambda key, run: _version(run, key), name)
    )
    for name in ("torch", "deepspeed", "transformers", "nccl")
}
_FOLDER = {
    "folder": _Own("string", "Attempt that counts, below the study's results.", lambda r: r.newest and r.newest.path)
}
COLUMNS: dict[str, str | _Own] = {
    **_FIELDS,
    **_RUN,
    **{name: f"measured.{name}" for name in _MEASURED},
    **{name: f"measured.memory.{name}" for name in _MEMORY},
    **_NUMBERS,
    **_SPEC,
    **_ORIGIN,
    **_VERSIONS,
    **_FOLDER,
}
"""Column -> dotted path in the record, or how it is computed; in the table's order."""


def load(*folders: str | Path) -> "pd.DataFrame":
    """All runs of one or more studies' results folders, one row a run, units in the names of the columns.

    `columns` describes every column. Numbers are empty for runs that do not count. Works on records alone. Raises
    SpecError for a folder without records and for a record that cannot be read.
    """
    runs: list[Run] = []
    for folder in folders:
        found = read_runs(Path(folder))
        if not found:
            raise SpecError(f"{folder}: found no record of a run; expected PLATFORM/CONFIG/ARM/RUN/aN/record.json in it")
        runs += found
    return frame(runs)


def frame(runs: Iterable[Run]) -> "pd.DataFrame":
    """Runs as a table; every column has its own type, whatever the runs hold."""
    import pandas as pd

    rows = [{name: _value(run, column) for name, column in COLUMNS.items()} for run in runs]
    types = {name: DTYPES.get(kind, "string") for name, (kind, _) in described().items()}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


@functools.cache
def described() -> dict[str, tuple[str, str]]:
    """Column -> JSON type and description."""
    schema = schema_of(Record, "Record")
    return {
        name: (column.type, column.text) if isinstance(column, _Own) else _of_schema(schema, column)
        for name, column in COLUMNS.items()
    }


def dictionary() -> dict[str, Any]:
    """The data dictionary: the JSON Schema of one row."""
    properties = {
        name: {"type": [kind, "null"], "description": text} for name, (kind, text) in described().items()
    }
    return {"$schema": DIALECT, "title": "Run", "type": "object", "properties": properties}


def columns() -> "pd.DataFrame":
    """The data dictionary as a table: column, type, description."""
    import pandas as pd

    rows = [(name, kind, text) for name, (kind, text) in described().items()]
    return pd.DataFrame(rows, columns=["column", "type", "description"])


def write(table: "pd.DataFrame", path: Path, kind: Literal["csv", "parquet"]) -> Path:
    """Write a table, and beside it the data dictionary, whose path it returns.

    Raises SpecError for Parquet without pyarrow and for a place that cannot be written.
    """
    try:
        if kind == "parquet":
            buffer = io.BytesIO()
            table.to_parquet(buffer, index=False)
            write_atomically(path, buffer.getvalue())
        else:
            write_atomically(path, to_csv(table))
        beside = path.with_suffix(".schema.json")
        write_atomically(beside, json.dumps(dictionary(), indent=1) + "\n")
    except ImportError:
        raise SpecError(PARQUET) from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from None
    return beside


def to_csv(table: "pd.DataFrame") -> str:
    """The table as CSV text."""
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text


def table_rows(runs: Iterable[Run]) -> Iterable[dict[str, Any]]:
    """The rows of `frame`, each value of its column's type, without pandas, whose import takes longer than 500 records."""
    # Fields of a record have their type already.
    numbers = [name for name, column in COLUMNS.items() if isinstance(column, _Own) and column.type == "number"]
    for run in runs:
        row = {name: _value(run, column) for name, column in COLUMNS.items()}
        yield row | {name: float(row[name]) for name in numbers if row[name] is not None}


def _value(run: Run, column: str | _Own) -> Any:
    if isinstance(column, _Own):
        return column.read(run)
    if column.startswith("measured.") and run.outcome != "ok":
        return None
    value: Any = run if column.startswith("spec.") else run.newest and run.newest.record
    for name in _steps(column):
        value = getattr(value, name, None)
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return " ".join(value) or None if isinstance(value, tuple) else value


@functools.cache
def _steps(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def _of_schema(schema: dict[str, Any], path: str) -> tuple[str, str]:
    """JSON type and description of a field, through the references of the schema."""
    node: dict[str, Any] = schema
    for name in path.split("."):
        node = schema["$defs"][_options(node, "$ref")[0].rpartition("/")[2]]["properties"][name]
    kind = next(kind for kind in [*_options(node, "type"), "string"] if kind != "null")
    return (kind if kind in DTYPES else "string"), node["description"]


def _options(node: dict[str, Any], key: str) -> list[str]:
    return [one[key] for one in (node, *node.get("anyOf", ())) if key in one]


def _version(run: Run, name: str) -> str | None:
    environment = run.newest.record.environment if run.newest else None
    return environment.versions.get(name) if environment else None
