"""Command lines and environments of the ranks; the wrapper's own behaviour, without torch."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.contract.errors import HarnessError
from harness.measure.host import usable_cores
from harness.supervisor import launch
from tests.engines.specs import make_spec
from tests.supervisor.conftest import ROOT, until


def wrapped(folder: Path, program: str, *injected: str, rank: int = 3) -> subprocess.Popen[str]:
    """The rank wrapper around a Python program."""
    environment = os.environ | {"RANK": str(rank), "HARNESS_SUPERVISOR_PID": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "harness.supervisor.rank", *injected, str(folder), sys.executable, "-c", program]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def exit_of(folder: Path, rank: int = 3) -> dict[str, object]:
    """What the wrapper reported."""
    plain: dict[str, object] = json.loads((folder / f"exit-{rank}.json").read_text())
    return plain


@pytest.mark.parametrize("code", [0, 1, 65])
def test_the_wrapper_ends_with_the_workers_exit_code(tmp_path: Path, code: int) -> None:
    assert wrapped(tmp_path, f"import sys; print('out'); sys.exit({code})").wait(30) == code
    assert (exit_of(tmp_path)["exit_code"], exit_of(tmp_path)["signal"]) == (code, None)
    assert (tmp_path / "rank-3.log").read_text() == "out\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_the_wrapper_dies_of_the_workers_signal(tmp_path: Path, number: signal.Signals) -> None:
    assert wrapped(tmp_path, f"import os; os.kill(os.getpid(), {int(number)})").wait(30) == -number
    assert (exit_of(tmp_path)["exit_code"], exit_of(tmp_path)["signal"]) == (None, number.name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_the_wrapper_passes_signals_on(tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    wrapper = wrapped(tmp_path, program)
    log = tmp_path / "rank-3.log"
    until(lambda: log.exists() and "ready" in log.read_text(), "the worker", 30)
    wrapper.send_signal(number)
    assert wrapper.wait(30) == 7
    assert exit_of(tmp_path)["exit_code"] == 7


def test_a_killed_wrapper_takes_its_worker_along(tmp_path: Path) -> None:
    wrapper = wrapped(tmp_path, "import os, signal; print(os.getpid(), flush=True); signal.pause()")
    log = tmp_path / "rank-3.log"
    until(lambda: log.exists() and log.read_text().endswith("\n"), "the worker", 30)
    pid = int(log.read_text())
    wrapper.kill()
    wrapper.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the worker's end", 10)


def test_options_that_the_launcher_injects_reach_the_worker(tmp_path: Path) -> None:
    assert wrapped(tmp_path, "import sys; print(sys.argv[1:])", "--local_rank=3").wait(30) == 0
    assert (tmp_path / "rank-3.log").read_text() == "['--local_rank=3']\n"


def test_a_worker_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    environment = os.environ | {"RANK": "0", "HARNESS_SUPERVISOR_PID": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "harness.supervisor.rank", str(tmp_path), "/absent/python"]
    assert subprocess.run(command, env=environment, check=False).returncode == 127
    assert "cannot start /absent/python" in (tmp_path / "rank-0.log").read_text()


def test_a_chosen_port_is_free_and_not_ephemeral() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = launch.free_port()
        assert port < low
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_taken_port_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("RuntimeError: something else\n")
    assert not launch.port_was_taken(tmp_path)
    (tmp_path / "rank-0.log").write_text(
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 15000, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
    )
    assert launch.port_was_taken(tmp_path)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [(None, ["0", "1"]), ("2,3", ["2", "3"]), ("5, 6,7", ["5", "6"]), ("GPU-ab,GPU-cd", ["GPU-ab", "GPU-cd"])],
)
def test_the_devices_that_a_scheduler_chose_are_used(stated: str | None, expected: list[str], tmp_path: Path) -> None:
    spec = make_spec("zero-1", platform__device="cuda", platform__accelerator="l4")
    environment = {} if stated is None else {"CUDA_VISIBLE_DEVICES": stated}
    assert launch.visible_devices(spec, environment) == expected
    words = launch.launcher_command(spec, tmp_path / "spec.json", tmp_path, environment)
    world = next(word for word in words if word.startswith("--world_info=")).removeprefix("--world_info=")
    assert json.loads(base64.urlsafe_b64decode(world)) == {"localhost": expected}


def test_fewer_visible_devices_than_ranks_are_refused() -> None:
    spec = make_spec("zero-1", platform__device="cuda", platform__accelerator="l4")
    with pytest.raises(HarnessError, match="found '0', expected 2 devices"):
        launch.visible_devices(spec, {"CUDA_VISIBLE_DEVICES": "0"})


def test_both_launchers_give_ranks_equal_cores(tmp_path: Path) -> None:
    for config in ("fsdp2-reshard-offload", "zero-3-offload"):
        environment = launch.rank_environment(make_spec(config), tmp_path, {})
        assert environment["OMP_NUM_THREADS"] == str(max(1, usable_cores() // 2))


def test_remedy_wins_over_spec_and_spec_over_defaults(tmp_path: Path) -> None:
    spec = make_spec("ddp", environment={"OMP_NUM_THREADS": "7", "PYTORCH_ALLOC_CONF": "backend:native"})
    environment = launch.rank_environment(spec, tmp_path, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize(
    ("given", "plain"),
    [("9.0a", "9.0"), ("8.0;9.0a;10.0f", "8.0;9.0;10.0"), ("8.9+PTX", "8.9+PTX"), ("Hopper", "Hopper")],
)
def test_deepspeed_is_given_architectures_that_it_can_parse(
    monkeypatch: pytest.MonkeyPatch, given: str, plain: str
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", given)
    assert launch.plain_architectures() == {"TORCH_CUDA_ARCH_LIST": plain}
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST")
    assert launch.plain_architectures() == {}
