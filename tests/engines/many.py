"""One rank that runs many specs one after the other: a process start costs far more than a tiny training.

    torchrun ... -m tests.engines.many FOLDER

Reads FOLDER/<name>/spec.json of every name and writes FOLDER/<name>/result-<rank>.json; a spec that
raises leaves error-<rank>.txt in its place. Real runs have a process of their own each.
"""

import gc
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from harness.contract.heartbeat import HeartbeatWriter
from harness.contract.spec import read_spec
from harness.engines.base import Context
from harness.engines.training import Training
from harness.measure.memory import Gauge
from harness.worker import write_json


def run_one(folder: Path, rank: int, world_size: int) -> None:
    spec = read_spec(folder / "spec.json")
    device = torch.device("cpu")
    training = Training(
        Context(spec, rank, world_size, device), HeartbeatWriter(folder, rank), Gauge(device, cap_gib=None), hook=None
    )
    training.check_hardware()
    training.build()
    training.warm_up()
    write_json(folder / f"parity-{rank}.json", [str(m) for m in training.mismatches()])
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
        gc.collect()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
