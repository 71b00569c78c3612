"""Every injected fault kills (or hangs) a real process the way it says."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from harness.contract.errors import SpecError
from harness.contract.spec import FaultKind
from harness.faults import Injector, kinds
from tests.engines.specs import make_spec

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import sys
from harness.contract.spec import parse_spec
from harness.faults import Injector
import json
injector = Injector(parse_spec(json.loads(sys.argv[1])), rank=0)
print("before", flush=True)
injector.strike(3, "forward")
print("after", flush=True)
"""


def strike(kind: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:

    spec = make_spec(faults=[{"kind": kind, "rank": 0, "step": 3, "phase": "forward"}])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(spec.to_json())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.mark.parametrize(
    ("kind", "sign"), [("sigkill", signal.SIGKILL), ("sigterm", signal.SIGTERM), ("segfault", signal.SIGSEGV)]
)
def test_signals_end_the_process(kind: str, sign: signal.Signals) -> None:
    finished = strike(kind)
    assert finished.returncode == -sign
    assert f"FAULT INJECTED: {kind} rank 0 step 3 phase forward" in finished.stdout


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("key_error", "KeyError: 'input_ids'"),
        ("disk_full", "No space left on device"),
        ("shm_full", "unable to allocate shared memory(shm)"),
        ("missing_module", "No module named 'absent_engine_extension'"),
        ("oom", "DefaultCPUAllocator: can't allocate memory"),
        ("port_in_use", "EADDRINUSE"),
    ],
)
def test_errors_are_the_real_ones(kind: str, text: str) -> None:
    finished = strike(kind)
    assert finished.returncode == 1
    assert text in finished.stderr
    assert "after" not in finished.stdout


@pytest.mark.parametrize("kind", ["sleep", "spin"])
def test_hangs_do_not_return(kind: str) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as expired:
        strike(kind, timeout_s=3)
    assert b"FAULT INJECTED" in (expired.value.stdout or b"")


def test_a_fault_strikes_only_at_its_place() -> None:
    spec = make_spec(faults=[{"kind": "key_error", "rank": 1, "step": 3, "phase": "backward"}])
    Injector(spec, rank=0).strike(3, "backward")
    injector = Injector(spec, rank=1)
    injector.strike(3, "forward")
    injector.strike(2, "backward")
    with pytest.raises(KeyError):
        injector.strike(3, "backward")


def test_an_unknown_fault_suggests_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"faults\[0\]\.kind: found 'segfalt'.*did you mean 'segfault'"):
        make_spec(faults=[{"kind": "segfalt"}])


def test_a_spec_names_only_injectable_faults() -> None:
    assert set(get_args(FaultKind)) == set(kinds())


def test_nan_loss_poisons_the_loss_it_is_given() -> None:
    torch = pytest.importorskip("torch")
    spec = make_spec(faults=[{"kind": "nan_loss", "rank": 0, "step": 0, "phase": "backward"}])
    loss = Injector(spec, rank=0).strike(0, "backward", torch.tensor(2.0))
    assert loss is not None and loss.isnan()


def test_faults_that_need_a_process_group_are_declared() -> None:
    assert {"oom", "swallowed_oom", "collective_mismatch", "missing_interface"} <= set(kinds())
