"""One rank: set up, pass the parity gate, warm up, run the timed window, then look closer.

    python -m harness.worker --spec SPEC.json --out TRY_FOLDER [--local_rank N]

Rank and world size come from the environment that both launchers set. Leaves heartbeat-<R>.json,
parity-<R>.json and, at its end, result-<R>.json; exits 0 exactly when the last was written.
"""

import argparse
import faulthandler
import gc
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contract.codec import decode_file, encode
from harness.contract.files import write_atomically
from harness.contract.heartbeat import HeartbeatWriter
from harness.contract.parity import REFERENCE, Reference
from harness.contract.spec import RunSpec, read_spec
from harness.faults import Injector
from harness.process import leave

if TYPE_CHECKING:
    import torch

    from harness.engines.base import Context
    from harness.engines.training import Training
    from harness.measure.memory import Gauge

_STARTED_S = time.perf_counter()
PARITY_EXIT = 65
"""Exit code of a rank that the parity gate stopped (EX_DATAERR)."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.worker", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    # The deepspeed launcher passes it; both spellings are in use.
    parser.add_argument("--local_rank", "--local-rank", type=int, default=None)
    return parser.parse_args()


def write_json(path: Path, value: object) -> None:
    """Write JSON; readers see the whole file or none."""
    write_atomically(path, json.dumps(encode(value), indent=1), durable=True)


def main() -> int:
    """Run one rank from the command line and the environment."""
    arguments = _arguments()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank if arguments.local_rank is None else arguments.local_rank))
    spec = read_spec(arguments.spec)
    heartbeat = HeartbeatWriter(arguments.out, rank)
    heartbeat.beat(-1, "load")
    stacks = (arguments.out / f"stacks-{rank}.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    reference = arguments.spec.with_name(REFERENCE)
    return _run(spec, arguments.out, reference, heartbeat, rank, world_size, local_rank)


def _run(
    spec: RunSpec, out: Path, reference: Path, heartbeat: HeartbeatWriter, rank: int, world_size: int, local_rank: int
) -> int:
    injector = Injector(spec, rank)
    injector.strike(-1, "load")
    # The heavy imports come after the first heartbeat, so that a slow disk counts as loading, not as a hang.
    # Meanwhile the garbage collector would scan half a million new objects a dozen times and free nothing.
    gc.disable()
    context, gauge = _join(spec, heartbeat, injector, rank, world_size, local_rank)

    from harness.engines.base import import_engine
    from harness.engines.imports import import_causal_lm
    from harness.engines.probe import Probe
    from harness.engines.training import Training
    from harness.measure.clock import Laps

    import_engine(spec.engine.name)
    import_causal_lm(spec.model.config["model_type"])
    # Imported objects stay alive, so scanning them wastes a second of CPU time. Freeze before the engine
    # is built, because garbage of the engine may hold memory.
    gc.freeze()
    hook = injector.strike if spec.faults else None
    if spec.protocol.ladder:
        result = Probe(context, heartbeat, gauge, write_json, out, hook).run()
        write_json(out / f"result-{rank}.json", result)
        return _leave(context.device)
    startup = Laps(_STARTED_S)
    startup.end("import")
    training = Training(context, heartbeat, gauge, hook, startup)
    training.check_hardware()
    training.build()
    injector.attach(training.engine, training.loop)
    gc.enable()
    training.warm_up()
    # Without warm-up steps there is nothing to check before the window, so the gate comes after it.
    if spec.protocol.warmup_steps and not _gate(training, spec, out, reference, rank):
        return PARITY_EXIT
    training.time()
    training.collect()
    if not spec.protocol.warmup_steps and not _gate(training, spec, out, reference, rank):
        return PARITY_EXIT
    training.profile()
    heartbeat.beat(training.loop.next_step, "done")
    write_json(out / f"result-{rank}.json", training.result())
    return _leave(context.device)


def _join(
    spec: RunSpec, heartbeat: HeartbeatWriter, injector: Injector, rank: int, world_size: int, local_rank: int
) -> "tuple[Context, Gauge]":
    """Take this rank's device and meet the other ranks."""
    import torch
    import torch.distributed as dist

    from harness.engines.base import Context
    from harness.measure.memory import Gauge, announce_refusals, cap_host_memory

    heartbeat.beat(-1, "init")
    cuda = spec.platform.device == "cuda"
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        announce_refusals()
    gauge = Gauge(device, spec.platform.memory_cap_gib)
    injector.strike(-1, "init")
    # Offloaded gradients are clipped on the CPU, which needs a backend there as well.
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", device_id=device if cuda else None)
    if not cuda and spec.platform.memory_cap_gib is not None:
        cap_host_memory(spec.platform.memory_cap_gib)
    return Context(spec, rank, world_size, device), gauge


def _gate(training: "Training", spec: RunSpec, out: Path, reference: Path, rank: int) -> bool:
    """Whether the run may be measured. The `defaults` arm promises nothing, so there a difference is only noted."""
    mismatches = training.mismatches(decode_file(Reference, reference) if reference.exists() else None)
    write_json(out / f"parity-{rank}.json", {"mismatches": mismatches, "arm": spec.identity.arm})
    if not mismatches or spec.identity.arm == "defaults":
        return True
    for mismatch in mismatches:
        print(f"PARITY MISMATCH: {mismatch}", flush=True)
    return False


def _leave(device: "torch.device") -> int:
    import torch.distributed as dist

    from harness.measure import clock

    clock.barrier(device)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    leave(main())
