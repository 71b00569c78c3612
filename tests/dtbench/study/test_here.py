"""The platform `here` describes this machine; a Hub id is fetched once."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from dtbench.study.here import this_machine
from dtbench.study.matrix import Matrix
from dtbench.study.models import find_model

from harness.contract.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]
LLAMA = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2}


def gpus(count: int, name: str = "NVIDIA H200", nvlink: bool = True) -> list[dict[str, Any]]:
    return [{"name": name, "uuid": f"GPU-{i}", "total_bytes": 150_754_820_096, "nvlink": nvlink} for i in range(count)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], ("cpu", "cpu")),
        (gpus(1), ("h200", "none")),
        (gpus(4), ("h200", "nvlink")),
        (gpus(8, "NVIDIA H100 80GB HBM3"), ("h100-80gb", "nvlink")),
        (gpus(2, "NVIDIA GeForce RTX 4090", nvlink=False), ("geforce-rtx-4090", "pcie")),
    ],
)
def test_this_machine_is_described_by_its_cards(
    monkeypatch: pytest.MonkeyPatch, found: list[dict[str, Any]], expected: tuple[str, str]
) -> None:
    monkeypatch.setattr("dtbench.study.here.list_gpus", lambda: found)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    entry = this_machine()
    assert entry["accelerator"] == expected[0]
    assert entry["interconnect"] == (expected[1] if found else "loopback")
    assert entry["world_size"] == (len(found) or 2)
    assert "16 cores" in entry["note"]


def test_cards_of_two_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtbench.study.here.list_gpus", lambda: gpus(1) + gpus(1, "NVIDIA L4"))
    with pytest.raises(SpecError, match=r"found NVIDIA H200 and NVIDIA L4.*CUDA_VISIBLE_DEVICES"):
        this_machine()


def test_a_study_runs_here(study: Callable[[str], Matrix], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtbench.study.here.list_gpus", lambda: gpus(2))
    matrix = study("platforms: [here]\nconfigs: [ddp]\n")
    assert {(run.platform.name, run.platform.accelerator, run.platform.world_size) for run in matrix.runs} == {
        ("here", "h200", 2)
    }
    assert "2 x NVIDIA H200 (151 GB each)" in matrix.platforms["here"].note


class Hub(BaseHTTPRequestHandler):
    """Answers for one repository and counts the requests."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        known = self.path == "/Org/My-Model.v2/resolve/main/config.json"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(json.dumps(LLAMA).encode() if known else b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[tuple[str, str | None]]]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    Hub.asked.clear()
    yield Hub.asked
    server.shutdown()


def test_a_hub_id_is_fetched_once(study: Callable[[str], Matrix], hub: list[tuple[str, str | None]]) -> None:
    text = "platforms: [cpu-x2]\nconfigs: [ddp]\nmodel: {config: Org/My-Model.v2}\n"
    first, second = study(text).runs[0], study(text).runs[0]
    assert (first.model.name, first.model.config) == ("my-model.v2", LLAMA)
    assert first.hash() == second.hash()
    assert hub == [("/Org/My-Model.v2/resolve/main/config.json", None)]


def test_the_hub_gets_the_token_of_the_environment(
    hub: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "of-nobody")
    assert find_model("Org/My-Model.v2", ROOT, "MODEL")["name"] == "my-model.v2"
    assert hub[0][1] == "Bearer of-nobody"


@pytest.mark.parametrize("word", ["Org/Name", "Org/config-name"])
def test_a_silent_hub_says_how_to_give_files(hub: list[tuple[str, str | None]], word: str) -> None:
    with pytest.raises(SpecError, match=rf"gave no config \(.*404.*hf download {word} config\.json"):
        find_model(word, ROOT, "MODEL")
