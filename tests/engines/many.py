"""One rank that runs many specs one after the other: a process start costs far more than a tiny training.

    torchrun ... -m tests.engines.many FOLDER

Reads FOLDER/<name>/spec.json of every name and writes FOLDER/<name>/result-<rank>.json; a spec that
raises leaves error-<rank>.txt in its place. Real runs have a process of their own each.
"""

import gc
import os
import sys
import time
import traceback
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import groups
from msgspec import structs

from harness.contract.heartbeat import HeartbeatWriter
from harness.contract.parity import Reference, same_training
from harness.contract.spec import read_spec
from harness.engines.base import Context
from harness.engines.training import Training
from harness.faults import Injector
from harness.measure.clock import Laps
from harness.measure.memory import Gauge
from harness.worker import write_json

REFERENCES: dict[str, Reference] = {}
"""Key of the training -> what its reference run left."""


def run_one(folder: Path, rank: int, world_size: int) -> None:
    spec = read_spec(folder / "spec.json")
    device, injector = torch.device("cpu"), Injector(spec, rank)
    hook = injector.strike if spec.faults else None
    training = Training(
        Context(spec, rank, world_size, device),
        HeartbeatWriter(folder, rank),
        Gauge(device, cap_gib=None),
        hook,
        Laps(time.perf_counter()),
    )
    training.check_hardware()
    training.build()
    injector.attach(training.engine, training.loop)
    training.warm_up()
    key = same_training(spec)
    write_json(folder / f"parity-{rank}.json", [str(m) for m in training.mismatches(REFERENCES.get(key))])
    if spec.identity.reference:
        REFERENCES[key] = Reference(**structs.asdict(training.trace()), path=folder.name, record="")
    training.time()
    training.collect()
    write_json(folder / f"result-{rank}.json", training.result())


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    for folder in sorted(p.parent for p in Path(sys.argv[1]).glob("*/spec.json")):
        print(f"== {folder.name}", flush=True)
        try:
            run_one(folder, rank, world_size)
        except Exception:
            (folder / f"error-{rank}.txt").write_text(traceback.format_exc())
            traceback.print_exc()
        if group := groups._get_zero_param_intra_parallel_group():
            # DeepSpeed makes it once per process.
            deepspeed.comm.destroy_process_group(group)
        gc.collect()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
