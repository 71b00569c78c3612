"""What DeepSpeed does by itself: each patch still finds what it patches, and still helps."""

import inspect
import subprocess
import sys
from typing import Any

import cpuinfo
import deepspeed
import pytest
from deepspeed.ops.op_builder import builder
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.muon import original_muon

from harness.contract.errors import SpecError
from harness.engines.zero.patches import refuse_hidden_synchronization
from tests.engines.conftest import ROOT

CHANGED = "DeepSpeed changed: measure or read harness/engines/zero/patches.py again"


def test_importing_the_engine_imports_no_inductor() -> None:
    program = "import sys, harness.engines.zero; print('torch._inductor.compile_fx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
    assert inspect.getsource(original_muon).count("@compiler.compile()") == 3, CHANGED


def test_the_processor_is_read_once_a_process() -> None:
    assert cpuinfo.get_cpu_info.cache_info().maxsize is None  # type: ignore[attr-defined]
    assert "from cpuinfo import get_cpu_info" in inspect.getsource(builder), CHANGED


@pytest.mark.parametrize("wrapper", [FP16_Optimizer, FP16_UnfusedOptimizer])
def test_stage_0_still_steps_at_setup(wrapper: Any) -> None:
    assert "self.optimizer.step()" in inspect.getsource(wrapper.initialize_optimizer_states), CHANGED


def test_a_synchronizing_deepspeed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        class tput_timer:
            class config:
                enabled = True

        wall_clock_breakdown = flops_profiler_enabled = staticmethod(lambda: False)

    with pytest.raises(SpecError, match="turned on the throughput timer, which synchronizes every step; expected"):
        refuse_hidden_synchronization(Engine, deepspeed)
