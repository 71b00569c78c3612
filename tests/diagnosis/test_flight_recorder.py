"""Flight-recorder dumps: who never joined, and nothing but plain containers is built."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from harness.diagnosis import Source, diagnose_source
from harness.diagnosis.judging.flight_recorder import DumpError, analyse, load


def call(
    sequence: int, state: str, operation: str = "nccl:all_reduce", size: int = 1, group: str = "0"
) -> dict[str, Any]:
    return {
        "process_group": (group, "default_pg"),
        "collective_seq_id": sequence,
        "profiling_name": operation,
        "input_sizes": [[size]],
        "state": state,
        "is_p2p": False,
        "time_created_ns": sequence,
    }


def dump(folder: Path, rank: int, entries: list[dict[str, Any]], ranks: str = "[0, 1, 2]") -> Path:
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": {"0": {"ranks": ranks}}, "entries": entries}))
    return path


def test_the_rank_that_enqueued_fewer_never_joined(tmp_path: Path) -> None:
    done = [call(1, "completed"), call(2, "completed")]
    paths = [dump(tmp_path, r, [*done, call(3, "scheduled", size=4096)]) for r in (0, 2)] + [dump(tmp_path, 1, done)]
    stuck = analyse(paths)
    assert stuck is not None
    assert (stuck.culprit_rank, stuck.operation, stuck.sequence, stuck.elements) == (1, "all_reduce", 3, 4096)
    assert stuck.last_completed == {0: 2, 1: 2, 2: 2}


def test_a_rank_without_a_dump_is_absent(tmp_path: Path) -> None:
    stuck = analyse([dump(tmp_path, r, [call(1, "started")]) for r in (0, 1)])
    assert stuck is not None
    assert stuck.culprit_rank == 2


def test_different_calls_under_one_number_are_a_mismatch(tmp_path: Path) -> None:
    entries = [call(5, "scheduled"), call(5, "scheduled"), call(5, "scheduled", "nccl:all_gather", 8)]
    stuck = analyse([dump(tmp_path, r, [e]) for r, e in enumerate(entries)])
    assert stuck is not None
    assert stuck.culprit_rank == 2
    assert "rank 2 in all_gather of 8 elements" in stuck.mismatch


def test_the_root_of_a_group_chain_is_named(tmp_path: Path) -> None:
    # Rank 1 waits for rank 2 in group 1; rank 0 waits for rank 1 in group 0; rank 2 waits for nobody.
    paths = [
        dump(tmp_path, 0, [call(3, "scheduled")]),
        dump(tmp_path, 1, [call(2, "completed"), call(9, "scheduled", group="1")]),
        dump(tmp_path, 2, [call(3, "scheduled") | {"state": "completed"}, call(8, "completed", group="1")]),
    ]
    stuck = analyse(paths)
    assert stuck is not None
    assert stuck.culprit_rank == 2


def test_everything_completed_is_no_wedge(tmp_path: Path) -> None:
    assert analyse([dump(tmp_path, r, [call(1, "completed")]) for r in range(3)]) is None


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/ran",)

    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Evil()]}))
    with pytest.raises(DumpError, match="plain containers only"):
        load(path)
    assert not (tmp_path / "ran").exists()
    assert analyse([path]) is None


@pytest.mark.parametrize(
    "data", [b"", b"not a pickle", pickle.dumps([1]), b'{"entries": 3}', pickle.dumps({"entries": [3]})]
)
def test_other_files_are_passed_over(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    assert analyse([path]) is None


def test_dumps_beside_a_log_name_the_culprit(tmp_path: Path) -> None:
    for rank, state in enumerate(["scheduled", "scheduled"]):
        dump(tmp_path, rank, [call(7, state)])
    log = tmp_path / "empty.log"
    log.write_text("")
    found = diagnose_source(Source(path=log, flight_recorder=tmp_path))
    assert (found.outcome, found.culprit_rank) == ("collective_wedge", 2)
