"""The command line on whatever lies around: files, folders, attempts, standard input."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.diagnosis.cli import NO_INPUT, main
from tests.diagnosis.replay import CASES

ROOT = CASES.parents[2]
LOG = CASES / "oom-new-torchrun" / "log.txt"


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main([*argv, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, str(LOG))
    assert set(found) == {"outcome", "confidence", "culprit_rank", "evidence", "runner_up", "sentence"}
    assert (found["outcome"], found["confidence"], found["culprit_rank"]) == ("cuda_oom", "high", 1)
    assert isinstance(found["evidence"], list)
    assert set(found["evidence"][0]) == {"file", "line", "text"}
    lines = LOG.read_text().splitlines()
    assert "Tried to allocate 2.00 GiB" in lines[found["evidence"][0]["line"] - 1]


def test_text_names_outcome_rank_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(LOG)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cuda_oom (high confidence, culprit rank 1)\n")
    assert "log.txt:7: torch.OutOfMemoryError" in out


def test_standard_input_and_the_module_command() -> None:
    command = [sys.executable, "-m", "harness", "diagnose", "-", "--json"]
    done = subprocess.run(command, input=gzip.compress(LOG.read_bytes()), capture_output=True, check=True)
    assert json.loads(done.stdout)["outcome"] == "cuda_oom"


def test_exit_code_pod_and_events(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty, pod, events = tmp_path / "log", tmp_path / "pod.json", tmp_path / "events.json"
    empty.write_text("step 1 loss 2.0\n")
    assert answer(capsys, str(empty), "--exit-code", "139")["outcome"] == "segfault"
    pod.write_text(json.dumps({"status": {"reason": "NodeShutdown", "phase": "Failed"}}))
    assert answer(capsys, str(empty), "--exit-code", "137", "--pod", str(pod))["outcome"] == "preemption"
    events.write_text(
        json.dumps([{"type": "Warning", "reason": "Evicted", "message": "The node was low on resource: memory."}])
    )
    assert answer(capsys, str(empty), "--events", str(events))["outcome"] == "evicted"


def test_a_kubectl_document_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "status": {"reason": "Evicted", "message": "The node was low on resource"},
    }
    event = {"apiVersion": "v1", "kind": "Event", "reason": "FailedScheduling", "message": "0/3 nodes are available"}
    listed = {"apiVersion": "v1", "kind": "List", "items": [event]}
    for name, document, outcome in [
        ("a", pod, "evicted"),
        ("b", event, "unschedulable"),
        ("c", listed, "unschedulable"),
    ]:
        (tmp_path / name).write_text(json.dumps(document))
        assert answer(capsys, str(tmp_path / name))["outcome"] == outcome


def test_a_folder_of_rank_logs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"worker_rank_{rank}.txt").write_text("step 1 loss 2.0\n")
    (tmp_path / "worker_rank_2.txt").write_text(
        "Traceback (most recent call last):\n  File \"t\", line 1, in f\nKeyError: 'x'\n"
    )
    found = answer(capsys, str(tmp_path))
    assert (found["outcome"], found["culprit_rank"]) == ("python_exception", 2)


def test_a_folder_of_ten_thousand_rank_logs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for rank in range(10_000):
        (tmp_path / f"rank-{rank}.log").write_text("step 1 loss 2.0\n")
    (tmp_path / "rank-4321.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    found = answer(capsys, str(tmp_path))
    assert (found["outcome"], found["culprit_rank"]) == ("cuda_oom", 4321)


@pytest.mark.parametrize("make", [lambda p: p / "absent", lambda p: p / "bad.json"])
def test_unreadable_input_gives_one_line(
    make,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,  # type: ignore[no-untyped-def]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    argv = [str(make(tmp_path))] if make(tmp_path) != bad else [str(LOG), "--pod", str(bad)]
    assert main(argv) == NO_INPUT
    error = capsys.readouterr().err
    assert error.startswith("diagnose: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", [None, "model.safetensors", ".hidden", "heartbeat-0.json"])
def test_a_folder_without_logs_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str | None
) -> None:
    if name:
        (tmp_path / name).write_text("words")
    found = answer(capsys, str(tmp_path))
    assert found["outcome"] == "unknown"
    assert str(found["sentence"]).startswith("The folder holds no log: neither launcher.log and rank-*.log nor")
    assert answer(capsys, str(tmp_path), "--exit-code", "139")["outcome"] == "segfault"


def test_an_empty_log_is_called_empty(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").touch()
    assert answer(capsys, str(tmp_path))["sentence"] == "The log is empty."


def test_redact_prints_the_log_without_private_things(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("from /home/jane/x.py on 10.1.2.3\nKeyError: 'x'\n")
    assert main([str(log), "--redact"]) == 0
    out = capsys.readouterr().out
    assert "jane" not in out
    assert "10.1.2.3" not in out
    assert out.endswith("KeyError: 'x'\n")


def test_an_empty_name_does_not_mean_this_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([""])
    assert ended.value.code == 2
    assert "found an empty name" in capsys.readouterr().err


def test_hidden_folders_and_binary_files_hold_no_logs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / ".venv" / "lib").mkdir(parents=True)
    (tmp_path / ".venv" / "lib" / "notes.txt").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    (tmp_path / "lib.so.1").write_bytes(bytes(range(256)) * 300)
    assert main([str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "unknown"
    assert "lib.so.1: a binary file" in found["sentence"]


def test_a_reader_who_leaves_early_gets_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("KeyError: 1\n")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "harness", "diagnose", str(tmp_path / "log")]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
