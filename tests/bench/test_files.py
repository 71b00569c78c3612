"""Writing what others may be writing too."""

import multiprocessing
from pathlib import Path

from bench.files import write_text

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
