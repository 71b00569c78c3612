"""Locks in the folder of compiled operators: those of the dead are removed, those of the living never."""

import os
import time
from pathlib import Path

import pytest

from harness.supervisor.extensions import ABANDONED_S, drop_abandoned_locks


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Locks made long before and during a run that began at 1,000 s before now."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    now_s = time.time()
    found = {}
    for name, made_s in (("ancient", now_s - ABANDONED_S - 1000), ("recent", now_s - 60), ("during", now_s - 10)):
        found[name] = tmp_path / name / "lock"
        found[name].parent.mkdir()
        found[name].touch()
        os.utime(found[name], (made_s, made_s))
    return found


def left(locks: dict[str, Path]) -> list[str]:
    return [name for name, path in locks.items() if path.exists()]


def test_before_a_run_only_old_leftovers_go(locks: dict[str, Path]) -> None:
    drop_abandoned_locks()
    assert left(locks) == ["recent", "during"]


def test_after_a_run_its_own_leftovers_go(locks: dict[str, Path]) -> None:
    drop_abandoned_locks(since_s=time.time() - 30)
    assert left(locks) == ["recent"]


def test_what_a_live_process_holds_stays(locks: dict[str, Path]) -> None:
    with locks["ancient"].open(), locks["during"].open():
        drop_abandoned_locks(since_s=0)
    assert left(locks) == ["ancient", "during"]


def test_no_folder_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "absent"))
    drop_abandoned_locks()
