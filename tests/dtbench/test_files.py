"""Writing what others may be writing too."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

from dtbench.study.files import write_text

from harness.contract.parts import part_of

TEXTS = [letter * 200_000 for letter in "ab"]


def write(path: Path, text: str) -> None:
    for _ in range(100):
        write_text(path, text)


def test_two_writers_of_one_file_never_mix_and_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "made/report.md"
    write_text(path, TEXTS[0])
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=write, args=(path, text)) for text in TEXTS]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in TEXTS
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_writer_left_goes_with_the_next_writing(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    part_of(tmp_path / "runs.csv", gone.pid).touch()
    write_text(tmp_path / "runs.csv", "a\n")
    assert [p.name for p in tmp_path.iterdir()] == ["runs.csv"]
