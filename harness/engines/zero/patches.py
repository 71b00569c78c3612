"""Patches of what DeepSpeed does in every process that imports or starts it.

Two patches save time. Measured with DeepSpeed 0.19.8 and torch 2.13 on a busy two-core machine, in CPU seconds of a
two-rank run that takes 13 to 18 s: `import_muon` 3 to 6 s; the cached `get_cpu_info` 2 s, 3 s with offload. The other
functions undo what would falsify a result or stay after the run. tests/engines/test_zero_patches.py fails when a
release of DeepSpeed no longer needs one of them.
"""

import functools
import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cpuinfo
import torch

from harness.contract.errors import SpecError

# DeepSpeed asks twice for each compiled operator of each rank, and an answer takes 1.4 s of CPU time.
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)


def import_muon(compiler: Any) -> None:
    """Import DeepSpeed's Muon without compiling its kernels, which no config here calls.

    `compiler` is `deepspeed.runtime.compiler`. DeepSpeed asks of every optimizer whether it is Muon, and the import
    hands three functions to `torch.compile`, which imports all of Inductor.
    """
    # A release without Muon raises ImportError: then DeepSpeed does not ask either.
    with patch.object(compiler, "compile", lambda *_, **__: lambda function: function), suppress(ImportError):
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")


def undo_setup_step(wrapper: Any, optimizer: torch.optim.Optimizer) -> None:
    """Start stage 0 where every other engine starts.

    Its bf16 wrappers allocate Adam's moments by stepping once with zero gradients. That applies weight decay and
    leaves the step counter at 1, so the first real update would be a quarter too small.
    """
    if hasattr(wrapper, "fp32_groups_flat"):
        pairs = [
            (m, torch.cat([p.data.flatten() for p in g]))
            for m, g in zip(wrapper.fp32_groups_flat, wrapper.fp16_groups, strict=True)
        ]
    elif hasattr(wrapper, "fp32_groups"):
        pairs = [
            (master, parameter.data)
            for masters, parameters in zip(wrapper.fp32_groups, wrapper.fp16_groups, strict=True)
            for master, parameter in zip(masters, parameters, strict=True)
        ]
    else:
        return
    with torch.no_grad():
        for master, parameter in pairs:
            master.copy_(parameter)
    for state in optimizer.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"].zero_()
    for group in optimizer.param_groups:
        if "step" in group:
            group["step"] = 0


def forget_shared_buffer(rank: int) -> None:
    """Unlink the 66 MiB in /dev/shm that DeepSpeed's CPU ranks share, once every rank has mapped them.

    DeepSpeed never unlinks them, so every run would leave its buffers in memory until the machine restarts.
    """
    torch.distributed.barrier()
    place = "_".join((str(os.getuid()), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], str(rank)))
    Path("/dev/shm", f"deepspeed_allreduce_buffer_{place}").unlink(missing_ok=True)


def refuse_hidden_synchronization(engine: Any, deepspeed: Any) -> None:
    """Read back what DeepSpeed really switched on, because its configuration has said one thing and done another.

    Raises SpecError naming what synchronizes every step.
    """
    switches = {
        "the comms logger": deepspeed.comm.comm.comms_logger.enabled,
        "the throughput timer": engine.tput_timer.config.enabled,
        "the wall-clock breakdown": engine.wall_clock_breakdown(),
        "the flops profiler": engine.flops_profiler_enabled(),
    }
    on = [name for name, enabled in switches.items() if enabled]
    if on:
        raise SpecError(
            f"DeepSpeed {deepspeed.__version__} turned on {', '.join(on)}, which synchronizes every step; "
            "expected all of it off: use the DeepSpeed of requirements.lock, or adapt harness/engines/zero"
        )
