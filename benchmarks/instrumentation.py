"""What our own instrumentation costs: the worker's loop over a bare loop, in alternating blocks of one process group.

    torchrun --nproc-per-node 2 benchmarks/instrumentation.py --spec SPEC.json [--pairs 10] [--steps 8]

Bare is forward, backward and update with nothing else: no heartbeat, no memory reading, no step marks, no kept loss.
Each pair runs bare, instrumented, instrumented, bare, so that drift favours neither; bare over bare of the same pair is
the noise floor. Rank 0 prints medians and ranges over pairs, of the slowest rank.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from harness.contract.heartbeat import HeartbeatWriter
from harness.contract.spec import read_spec
from harness.engines.base import Context, Engine, build_engine
from harness.engines.loop import Loop
from harness.measure import clock
from harness.measure.memory import Gauge


def bare_step(engine: Engine, loop: Loop, micro_steps: int) -> None:
    """One optimizer step and nothing else."""
    for micro_step in range(micro_steps):
        tokens = loop.tokens.batch(loop.next_step, micro_step)
        engine.backward(engine.forward(tokens), last=micro_step + 1 == micro_steps)
    engine.step()
    loop.next_step += 1


def bare_block(device: torch.device, steps: int, step: Callable[[], None]) -> float:
    """Seconds of so many steps between two barriers, without marks."""

    def block() -> None:
        for _ in range(steps):
            step()

    window_s, _ = clock.timed(device, 1, block)
    return window_s


def slowest(device: torch.device, seconds: float) -> float:
    """The same figure as the slowest rank has it."""
    value = torch.tensor(seconds, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def main() -> None:
    """Build the engine once and run the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True, help="run spec, as for python -m harness run")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8, help="steps of one block")
    options = parser.parse_args()
    spec = read_spec(options.spec)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = spec.platform.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", device_id=device if cuda else None)
    context = Context(spec, rank, world_size, device)
    engine = build_engine(context)
    micro_steps = spec.data.gradient_accumulation
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(context, engine, HeartbeatWriter(Path(folder), rank), Gauge(device, None).now, None)
        loop.tokens.prepare(0, spec.protocol.warmup_steps + 4 * options.pairs * options.steps)
        for _ in range(spec.protocol.warmup_steps):
            loop.step()

        def bare() -> float:
            return slowest(device, bare_block(device, options.steps, lambda: bare_step(engine, loop, micro_steps)))

        def instrumented() -> float:
            return slowest(device, clock.timed(device, options.steps, loop.step)[0])

        ratios, floor = [], []
        with clock.collector_paused():
            for _ in range(options.pairs):
                first, second, third, fourth = bare(), instrumented(), instrumented(), bare()
                ratios.append((second + third) / (first + fourth))
                floor.append(fourth / first)
    if rank == 0:
        print(f"{spec.identity.config}, micro-batch {spec.data.micro_batch}, {options.pairs} pairs of {options.steps}:")
        print(f"instrumented over bare: {spread(ratios)}")
        print(f"bare over bare:         {spread(floor)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
