"""Two calls for one study at the same time do not disturb each other."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.conftest import STUDY, Checkout


def test_a_second_client_appends_to_the_log(checkout: Checkout) -> None:
    run = checkout.matrix.runs[0]
    record = checkout.finish(run)
    written, words = record.read_bytes(), record.parent.with_name("a1.log")
    words.write_text("what the run says\n")
    target = str(record.relative_to(checkout.folder))
    for times in (1, 2):
        checkout.run("--force", target)
        lines = words.read_text().splitlines()
        assert lines[0] == "what the run says"
        assert sum("already finished: ok" in line for line in lines) == times
    assert (checkout.results / "logs/runs" / f"{run.path()}.log").resolve() == words
    assert record.read_bytes() == written


def test_two_clients_at_once_both_make_the_report(checkout: Checkout) -> None:
    checkout.finish_all()
    clients = [
        subprocess.Popen(
            checkout.command(), cwd=checkout.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    said = [client.communicate(timeout=300)[0] for client in clients]
    assert [client.returncode for client in clients] == [0, 0], "\n".join(said)
    assert all((checkout.results / name).is_file() for name in ("runs.csv", "cells.csv", "report.md", "report.html"))
    assert "Nothing to be done" in checkout.run()
    assert not list(checkout.results.rglob("*.part"))


def test_a_secret_is_refused_before_anything_is_written(checkout: Checkout) -> None:
    checkout.write_study("environment: {HF_TOKEN: abc}\n" + STUDY % {"repeats": 1})
    for target in ("plan", "-n"):
        text = checkout.run(target, ok=False)
        assert "config/small.yaml: environment.HF_TOKEN: looks like a secret" in text
        assert "Traceback" not in text
    assert not checkout.results.exists()


def test_names_of_300_characters_are_refused_in_words(checkout: Checkout) -> None:
    assert f"study '{76 * 's'}...: not found" in checkout.run("-n", config=(f"study={300 * 's'}",), ok=False)
    checkout.write_study(f"name: {300 * 'n'}\n" + STUDY % {"repeats": 1})
    for target in ("plan", "-n"):
        text = checkout.run(target, ok=False)
        assert f"name: found '{76 * 'n'}..., expected lower-case" in text
        assert "Traceback" not in text


@pytest.fixture
def locked_disk(checkout: Checkout, tmp_path: Path) -> Iterator[Path]:
    """Results with a report, on a file system that nobody may write to."""
    checkout.finish_all()
    checkout.run("report")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
    subprocess.run(["cp", "-r", str(checkout.results), str(place)], check=True)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_unwritable_results_are_refused_in_words(checkout: Checkout, locked_disk: Path) -> None:
    for target in ("report", "plan"):
        text = checkout.run(target, config=(f"results={locked_disk}",), ok=False)
        assert "found a folder that cannot be written to; give another with --config results=FOLDER" in text
        assert "Traceback" not in text
    checkout.run("report", "-n", config=(f"results={locked_disk}",))
