"""`dtbench check FOLDER`: shared records hold, and every planted fault is found and said in words."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dtbench import cli

from harness.delivery.check import Checked, check
from harness.delivery.share import share
from tests.supervisor.delivery.test_share import an_attempt, place

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "results/h200-x2-2026"
RUN = "h200-x2/fsdp2-reshard/matched/r1-7128ec76a0e6/a1"
REFERENCE = "h200-x2/ddp/matched/r1-e97c1ef3e794/a1"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Two stored runs of two H200s, one of them the reference."""
    for run in (RUN, REFERENCE):
        shutil.copytree(STORED / run, tmp_path / "study" / run)
    return tmp_path / "study"


def edit(path: Path, change: Callable[[Any], None]) -> None:
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain, indent=1) + "\n")


def edit_record(bundle: Path, change: Callable[[Any], None], run: str = RUN) -> None:
    edit(bundle / run / "record.json", change)


def edit_everywhere(bundle: Path, change: Callable[[Any, list[Any]], None]) -> None:
    """A forger who changes the ranks' results too, and lists their new hashes."""
    folder = bundle / RUN
    record = json.loads((folder / "record.json").read_text())
    paths = sorted(folder.glob("try-1/result-*.json"))
    results = [json.loads(path.read_text()) for path in paths]
    change(record, results)
    for path, result in zip(paths, results, strict=True):
        path.write_text(json.dumps(result))
        (listed,) = [file for file in record["files"] if folder / file["path"] == path]
        raw = path.read_bytes()
        listed |= {"size_bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (folder / "record.json").write_text(json.dumps(record))


def faster(record: Any, results: list[Any], times: float) -> None:
    m = record["measured"]
    for name in ("tokens_per_s", "tokens_per_s_per_gpu", "mfu", "mfu_causal"):
        m[name] *= times
    for name in ("step_time_s", "step_time_p50_s", "step_time_p95_s"):
        m[name] /= times
    m["step_times_s"] = [value / times for value in m["step_times_s"]]
    for result in results:
        result["window_s"] /= times
        result["step_times_s"] = [value / times for value in result["step_times_s"]]


def said(checked: Checked) -> str:
    return "\n".join(map(str, checked.problems))


def test_stored_records_hold(bundle: Path) -> None:
    checked = check(bundle)
    assert (checked.records, checked.exit_status, said(checked)) == (2, 0, "")
    assert dict(checked.done) == {
        "numerics read back": 2,
        "losses held against the reference": 2,
        "numbers made again from the ranks' results": 2,
        "speed held against the run's own matmul": 2,
        "traffic held against the run's own all-reduce": 2,
        "memory held against the card": 2,
    }


def test_what_share_writes_passes(tmp_path: Path) -> None:
    an_attempt(place(tmp_path))
    assert "not marked as redacted" in said(check(tmp_path))
    share(tmp_path)
    checked = check(tmp_path)
    assert (checked.records, said(checked)) == (1, "")


def test_an_edited_number_is_found(bundle: Path) -> None:
    edit_record(bundle, lambda r: r["measured"]["memory"].update(peak_allocated_bytes=10**10))
    assert f"{RUN}: measured.memory.peak_allocated_bytes: the record says 10000000000" in said(check(bundle))


def test_an_edited_loss_is_found(bundle: Path) -> None:
    edit_record(bundle, lambda r: r["measured"]["loss"].__setitem__(7, 1.0))
    assert "measured.loss[7]: the record says 1.0, its ranks' results give" in said(check(bundle))


def test_an_edited_spec_is_found(bundle: Path) -> None:
    edit_record(bundle, lambda r: r["spec"]["protocol"].update(timed_steps=300))
    found = said(check(bundle))
    assert "spec_hash: found" in found
    assert "holds the record of h200-x2/fsdp2-reshard/matched/r1-" in found


def test_a_wrong_hash_is_found(bundle: Path) -> None:
    with open(bundle / RUN / "try-1/rank-0.log", "a") as log:
        log.write("one line more\n")
    assert said(check(bundle)) == f"{RUN}: try-1/rank-0.log: gone, or not what the record lists (size and sha256)"


def test_an_unlisted_file_is_found(bundle: Path) -> None:
    (bundle / RUN / "try-1/rank-7.log").write_text("fine\n")
    assert said(check(bundle)) == f"{RUN}: try-1/rank-7.log: not in the record's list of files"


def test_an_impossible_speed_is_found(bundle: Path) -> None:
    edit_everywhere(bundle, lambda record, results: faster(record, results, 10.0))
    found = said(check(bundle))
    assert found.startswith(f"{RUN}: tokens_per_s: 1.")
    assert "FLOP/s a GPU is above the 7." in found
    assert found.endswith("of the matrix product that the same run measured")


def test_a_possible_speed_passes(bundle: Path) -> None:
    # What nobody can tell from the records alone: a forger who stays below every limit and rewrites all of it.
    edit_everywhere(bundle, lambda record, results: faster(record, results, 1.1))
    assert said(check(bundle)) == ""


def test_an_impossible_traffic_is_found(bundle: Path) -> None:
    def change(record: Any, results: list[Any]) -> None:
        for holder in (record["measured"], *results):
            holder["profile"]["collectives"]["allgather"]["time_s"] /= 10

    edit_everywhere(bundle, change)
    assert "profile.collectives.allgather: 5.46e+11 bytes/s is above the 2.999e+11 of the all-reduce" in said(
        check(bundle)
    )


def test_more_memory_than_the_card_is_found(bundle: Path) -> None:
    def change(record: Any, results: list[Any]) -> None:
        for memory in (record["measured"]["memory"], *record["measured"]["memory_by_rank"]):
            memory["peak_reserved_bytes"] = 200 * 2**30
        for result in results:
            result["memory"]["peak_reserved_bytes"] = 200 * 2**30

    edit_everywhere(bundle, change)
    assert "memory.peak_reserved_bytes: 200 GiB is above the 139.8 of the platform's card or cap" in said(check(bundle))


def test_broken_promises_are_found(bundle: Path) -> None:
    def change(record: Any, results: list[Any]) -> None:
        for holder in (record["measured"], *results):
            holder["found"]["master"] = "bfloat16"

    edit_everywhere(bundle, change)
    assert f"{RUN}: master: promised float32, found bfloat16" in said(check(bundle))


def test_another_training_is_found(bundle: Path) -> None:
    def change(record: Any, results: list[Any]) -> None:
        for holder in (record["measured"], *results):
            holder["loss"] = [value * 0.9 for value in holder["loss"]]

    edit_everywhere(bundle, change)
    assert "off the reference's, at most 2.00% allowed" in said(check(bundle))


@pytest.mark.parametrize(
    ("name", "line", "kind"),
    [
        (f"{RUN}/try-1/launcher.log", "loaded /home/somebody/model.py", "a path"),
        (f"{RUN}/try-1/launcher.log", "hf_abcdefghijklmnopqrstuvwx", "a token"),
        ("logs/report.log", "on gke-pool-7-abcd", "a host"),
        ("report.md", "token hf_abcdefghijklmnopqrstuvwx", "a token"),
        ("notes.txt", "mail somebody@example.com", "a mail address"),
    ],
)
def test_private_text_is_found_where_it_stands(bundle: Path, name: str, line: str, kind: str) -> None:
    path = bundle / name
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as file:
        file.write(f"first\n{line}\n")
    number = len(path.read_text().splitlines())
    assert f"{name}: line {number} holds {kind}" in said(check(bundle))


def test_private_text_in_a_record_is_found(bundle: Path) -> None:
    edit_record(bundle, lambda r: r["environment"]["variables"].update(CUDA_HOME="/home/somebody/cuda"))
    assert said(check(bundle)) == f"{RUN}/record.json: environment.variables.CUDA_HOME holds a path"


def test_a_link_out_of_the_bundle_is_found(bundle: Path) -> None:
    (bundle / "elsewhere.log").symlink_to("/etc/hostname")
    assert said(check(bundle)) == "elsewhere.log: a link out of the bundle"


def test_a_link_to_itself_is_found(bundle: Path) -> None:
    (bundle / "loop.log").symlink_to("loop.log")
    assert said(check(bundle)) == "loop.log: a link out of the bundle"


def test_a_record_outside_is_never_read(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_text("{}")
    (bundle / RUN / "record.json").unlink()
    (bundle / RUN / "record.json").symlink_to(tmp_path / "outside.json")
    assert said(check(bundle)) == f"{RUN}/record.json: a link out of the bundle"


def test_a_record_without_end_is_refused(bundle: Path) -> None:
    (bundle / RUN / "record.json").unlink()
    os.mkfifo(bundle / RUN / "record.json")
    (bundle / REFERENCE / "try-1/result-0.json").unlink()
    os.mkfifo(bundle / REFERENCE / "try-1/result-0.json")
    assert f"{RUN}/record.json: cannot be read: found no plain file" in said(check(bundle))
    with open(bundle / REFERENCE / "record.json", "r+b") as file:
        file.truncate(2**32)
    found = said(check(bundle))
    assert f"{RUN}/record.json: cannot be read: found no plain file" in found
    assert f"{REFERENCE}/record.json: cannot be read: found more than 256 MiB" in found


def test_only_private_text_is_nothing_to_check(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("password=hunter2-and-more\n")
    checked = check(tmp_path)
    assert (checked.records, checked.exit_status) == (0, 2)
    assert len(checked.problems) == 1


@pytest.mark.parametrize(
    "hostile",
    [
        lambda r: r["measured"].update(profile={"collectives": {"allgather": 7}, "shares": []}),
        lambda r: r["measured"].update(preflight={"matmul": "fast", "matmul_flops_per_s_by_rank": "x"}),
        lambda r: r["measured"].update(
            preflight={"all_reduce": {"bus_bytes_per_s": 1}, "bus_bytes_per_s_by_node": [{}]}
        ),
        lambda r: r["measured"].update(ledger={"x": {"y": [1]}}),
        lambda r: r["files"].append({"path": "../../../../../../etc/passwd", "size_bytes": 1, "sha256": "0"}),
        lambda r: r.update(measured=7),
        lambda r: r.clear(),
    ],
)
def test_hostile_records_are_problems_not_crashes(bundle: Path, hostile: Callable[[Any], None]) -> None:
    edit_record(bundle, hostile)
    edit_record(bundle, lambda r: r["measured"].update(tokens_per_s=1.0), REFERENCE)
    checked = check(bundle)
    assert checked.exit_status == 1
    assert any(problem.place == REFERENCE for problem in checked.problems)


def test_a_record_cut_short_is_found(bundle: Path) -> None:
    path = bundle / RUN / "record.json"
    path.write_text(path.read_text()[:5000])
    assert f"{RUN}/record.json: 228:1: not JSON" in said(check(bundle))


def test_the_command_checks_a_folder(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(bundle)]) == 0
    assert "All of it holds." in capsys.readouterr().out
    edit_record(bundle, lambda r: r["measured"].update(mfu=0.9))
    assert cli.main(["check", str(bundle)]) == 1
    assert "measured.mfu: the record says 0.9" in capsys.readouterr().out
    (bundle.parent / "empty").mkdir()
    assert cli.main(["check", str(bundle.parent / "empty")]) == 2
    assert "nothing could be checked" in capsys.readouterr().out
