"""Unfinished copies are named by their writer, and only a dead one's of this machine is taken away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.contract import parts
from harness.contract.parts import part_of, remove_leftovers


def test_only_a_dead_writers_copies_of_this_machine_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, alive = part_of(tmp_path / "a.csv", gone.pid), part_of(tmp_path / "a.csv")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(parts, "_machine", lambda: "0" * 8)
        foreign = part_of(tmp_path / "a.csv", gone.pid)
    for path in (dead, alive, foreign, tmp_path / "a.part", tmp_path / ".part"):
        path.touch()
    remove_leftovers(list(tmp_path.iterdir()))
    assert {p.name for p in tmp_path.iterdir()} == {alive.name, foreign.name, "a.part", ".part"}


def test_two_writers_never_share_a_copy(tmp_path: Path) -> None:
    assert part_of(tmp_path / "a") != part_of(tmp_path / "a")
    assert part_of(tmp_path / "a").name.endswith(f".{os.getpid()}.part")
