"""What DeepSpeed does by itself, in every process that imports or starts it, and what is done about it here."""

import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cpuinfo
import torch

from harness.contract.errors import SpecError

# DeepSpeed asks twice for each compiled operator of each rank, and an answer takes 1.4 s of CPU time.
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)


def import_muon(compiler: Any) -> None:
    """Import DeepSpeed's Muon so that its kernels are compiled when they are called and not when they are imported.

    `compiler` is `deepspeed.runtime.compiler`. To tell whether it supports an optimizer DeepSpeed asks whether it is
    Muon, and so hands three functions to `torch.compile` that nobody calls here: 3.7 s of CPU time in every rank, most
    of it the import of Inductor.
    """

    def when_called(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            return compiled()(*arguments, **options)

        compiled = functools.cache(lambda: decorate()(function))
        return call

    decorate = compiler.compile
    compiler.compile = lambda: when_called
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    except ImportError:
        pass  # a release without it: DeepSpeed does not ask either
    finally:
        compiler.compile = decorate


def undo_setup_step(wrapper: Any, optimizer: torch.optim.Optimizer) -> None:
    """Start stage 0 where every other engine starts.

    Its bf16 wrappers allocate Adam's moments by stepping once with zero gradients: weight decay is applied
    and the step counter stands at 1, so that the first real update is a quarter too small.
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
    """Take away the name of the 66 MiB that DeepSpeed's CPU ranks share, once every rank has mapped it.

    DeepSpeed never does, so every run would leave its buffers in /dev/shm, in memory, until the machine restarts.
    """
    torch.distributed.barrier()
    place = "_".join((str(os.getuid()), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], str(rank)))
    Path("/dev/shm", f"deepspeed_allreduce_buffer_{place}").unlink(missing_ok=True)


def refuse_hidden_synchronization(engine: Any, deepspeed: Any) -> None:
    """Read back what DeepSpeed really switched on: its configuration has said one thing and done another before.

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
        raise SpecError(f"DeepSpeed {deepspeed.__version__} turned on {', '.join(on)}, which synchronizes every step")
