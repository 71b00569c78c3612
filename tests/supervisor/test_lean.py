"""The launchers, started with few imports: still the real ones, ending as they do."""

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.supervisor import lean
from tests.supervisor.conftest import ROOT

WORLD = base64.urlsafe_b64encode(json.dumps({"localhost": ["0", "1"]}).encode()).decode()
LAUNCHERS = {
    lean.DEEPSPEED: [f"--world_info={WORLD}", "--master_port=29999"],
    lean.TORCHRUN: ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"],
}
RANK = """
import json, os, sys
from pathlib import Path
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
found = {name: os.environ.get(name) for name in names} | {"arguments": sys.argv[1:]}
Path(__file__).with_name(f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
sys.exit(int(os.environ.get("CODE", "0")) if os.environ["RANK"] == "1" else 0)
"""


def launch(module: str, script: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Two ranks of a script under a launcher, as the supervisor starts it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"} | extra
    command = [sys.executable, "-m", "harness.supervisor.lean", module, *LAUNCHERS[module], str(script), "--steps", "3"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def python(program: str, **extra: str) -> str:
    """What a program prints in a fresh interpreter."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"} | extra
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("module", LAUNCHERS)
def test_every_rank_learns_its_place(module: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RANK)
    done = launch(module, script)
    assert done.returncode == 0, done.stderr
    assert "imported as a whole" not in done.stderr
    for rank in range(2):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        injected = [f"--local_rank={rank}"] if module == lean.DEEPSPEED else []
        assert found["arguments"] == [*injected, "--steps", "3"]


@pytest.mark.parametrize(("module", "code"), [(lean.DEEPSPEED, 3), (lean.TORCHRUN, 1)])
def test_a_failed_rank_fails_the_launcher(module: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RANK)
    done = launch(module, script, CODE="3")
    assert done.returncode == code
    assert ("exits with return code = 3" in done.stdout) or ("exitcode  : 3" in done.stderr)


def test_deepspeeds_launcher_starts_without_torch() -> None:
    program = (
        "import sys; from harness.supervisor import lean\n"
        "launcher = lean.load(lean.DEEPSPEED)\n"
        "launcher.get_accelerator().visible_devices_envs()\n"
        "print(launcher.__file__.endswith('deepspeed/launcher/launch.py'), 'torch._C' in sys.modules,\n"
        "      'deepspeed.runtime' in sys.modules)"
    )
    assert python(program).split()[-3:] == ["True", "False", "False"]


def test_torch_still_imports_the_kernels_left_out() -> None:
    program = (
        "import sys, torch\n"
        "kernels = sys.modules['torch._meta_registrations']\n"
        "print(len(vars(kernels)) > 100, torch._meta_registrations is kernels)"
    )
    assert python(program).split()[-2:] == ["True", "True"]


def test_torchrun_starts_without_meta_kernels() -> None:
    program = (
        "import sys; from harness.supervisor import lean\n"
        "launcher = lean.load(lean.TORCHRUN)\n"
        "print(callable(launcher.main), len(vars(sys.modules['torch._meta_registrations'])) < 20)"
    )
    assert python(program).split()[-2:] == ["True", "True"]


def test_deepspeeds_launcher_still_sleeps_between_looks() -> None:
    program = (
        "import time; from harness.supervisor import lean\n"
        "launcher = lean.load(lean.DEEPSPEED)\n"
        "print(launcher.time is time, 'sleep' in launcher.main.__code__.co_names)"
    )
    assert python(program).split()[-2:] == ["True", "True"]


def test_torch_loads_when_the_launcher_needs_it() -> None:
    program = (
        "from harness.supervisor import lean\n"
        "lean.load(lean.DEEPSPEED)\n"
        "from deepspeed.utils import logging\n"
        "import sys; kept = logging.torch\n"
        "assert sys.modules['torch'] is kept\n"
        "import torch.nn\n"
        "print(kept.tensor([1.0]).sum().item(), torch.nn.Linear is kept.nn.Linear)"
    )
    assert python(program).split()[-2:] == ["1.0", "True"]


def test_another_layout_is_imported_whole() -> None:
    program = (
        "from harness.supervisor import lean\n"
        "import sys; trim = lean._trim_deepspeed\n"
        "def moved():\n"
        "    trim()\n"
        "    sys.modules['deepspeed.utils'] = lean._bare('deepspeed.utils', 'numa')\n"
        "lean._TRIMS[lean.DEEPSPEED] = moved\n"
        "launcher = lean.load(lean.DEEPSPEED)\n"
        "print(callable(launcher.main), 'torch._C' in sys.modules, 'deepspeed.runtime' in sys.modules)"
    )
    assert python(program).split()[-3:] == ["True", "True", "True"]


def test_the_launchers_sleep_ends_with_the_last_child() -> None:
    start_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "pass"]), subprocess.Popen(["sleep", "0.6"]) as last:
        lean.wait_for_all(30)
        assert last.poll() == 0
    assert 0.5 < time.monotonic() - start_s < 25
    with subprocess.Popen(["sleep", "60"]) as endless:
        start_s = time.monotonic()
        lean.wait_for_all(0.3)
        assert time.monotonic() - start_s >= 0.3
        endless.kill()
