"""`harness run` whose ranks run this file in place of the worker: out of memory by fragmentation until cured."""

import json
import os
import sys
from pathlib import Path

from harness import run
from harness.contract.codec import encode
from harness.contract.measured import Found, Memory, RankResult
from harness.contract.spec import read_spec
from harness.supervisor import launch

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 926.00 MiB. GPU {rank} has a total capacity of "
    "22.03 GiB of which 439.12 MiB is free. Including non-PyTorch memory, this process has 21.59 GiB memory in use. "
    "Of the allocated memory 15.46 GiB is allocated by PyTorch, and 5.77 GiB is reserved by PyTorch but unallocated. "
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)


def worker(spec_path: Path, out: Path) -> None:
    """Die as a fragmented rank does, or leave a result once the cure is in force."""
    rank, spec = int(os.environ["RANK"]), read_spec(spec_path)
    if os.environ.get("PYTORCH_ALLOC_CONF") != "expandable_segments:True":
        sys.exit("Traceback (most recent call last):\n" + OOM.format(rank=rank))
    names = ("parameter", "compute", "gradient", "reduce", "master", "optimizer_state")
    steps = spec.protocol.timed_steps
    result = RankResult(
        rank=rank, world_size=spec.platform.world_size, parameters=1, window_s=0.1, step_times_s=[0.05] * steps,
        warmup_step_times_s=[], loss=[1.0] * steps, grad_norm=[1.0] * steps, memory=Memory(), state=None,
        found=Found(**dict.fromkeys(names), optimizer_class="none"), startup_s={}, resolved={}, versions={},
        device_name="none",
    )  # fmt: skip
    (out / f"result-{rank}.json").write_text(json.dumps(encode(result)))


def command(spec_path: Path, folder: Path) -> list[str]:
    """What the launcher runs per rank: the real wrapper around this file."""
    return ["harness.supervisor.rank", str(folder), sys.executable, __file__, "worker", str(spec_path), str(folder)]


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        launch.worker_command = command
        sys.exit(run.run(Path(sys.argv[1]), Path(sys.argv[2]), None))
