"""Atomic writes: never half a file, and only a killed writer's copies are removed."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.contract import files
from harness.contract.files import part_of, remove_leftovers, write_atomically

TEXTS = [letter * 200_000 for letter in "ab"]


def test_only_this_machines_dead_writers_are_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, alive = part_of(tmp_path / "a.csv", gone.pid), part_of(tmp_path / "a.csv")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(files, "_machine", lambda: "0" * 8)
        foreign = part_of(tmp_path / "a.csv", gone.pid)
    for path in (dead, alive, foreign, tmp_path / "a.part", tmp_path / ".part"):
        path.touch()
    remove_leftovers(list(tmp_path.iterdir()))
    assert {p.name for p in tmp_path.iterdir()} == {alive.name, foreign.name, "a.part", ".part"}


def test_two_writers_never_share_a_copy(tmp_path: Path) -> None:
    assert part_of(tmp_path / "a") != part_of(tmp_path / "a")
    assert part_of(tmp_path / "a").name.endswith(f".{os.getpid()}.part")


def write(path: Path, text: str) -> None:
    for _ in range(100):
        write_atomically(path, text)


def test_two_writers_of_one_file_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "made/report.md"
    write_atomically(path, TEXTS[0])
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=write, args=(path, text)) for text in TEXTS]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in TEXTS
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert list(path.parent.iterdir()) == [path]


def test_the_next_write_removes_a_killed_writers_file(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    part_of(tmp_path / "runs.csv", gone.pid).touch()
    write_atomically(tmp_path / "runs.csv", "a\n")
    assert [p.name for p in tmp_path.iterdir()] == ["runs.csv"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
