"""What our own workflow costs, measured: `python benchmarks/workflow_speed.py [--runs 1000] [--repeats 5]`.

In a scratch copy of the checkout, with cached records made here for every run (nothing is trained):
  no-op   `snakemake` on a finished study, against the same call on an empty two-file workflow
  report  `snakemake report` from the cached records
Minimum, median and maximum of the wall times, and the median CPU time, which tells a busy machine from slow code;
exit status 1 when a bound is missed: a no-op takes at most 1.2x the empty workflow; a report of 1,000 runs takes at
most 4 s, one of 10,000 at most 15 s and 1 GB.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "workflow/lib")]

from dtbench.study.matrix import load_matrix  # noqa: E402

from harness.contract.measured import Measured, Memory, State  # noqa: E402
from harness.contract.outcome import Diagnosis  # noqa: E402
from harness.contract.record import RECORD_VERSION, Record, Try  # noqa: E402
from harness.contract.spec import RunSpec  # noqa: E402

EMPTY = {
    "Snakefile": 'include: "rules.smk"\n\n\nrule all:\n    input:\n        "out.txt",\n',
    "rules.smk": 'rule out:\n    output:\n        "out.txt",\n    shell:\n        "touch {output}"\n',
}
STUDY = """
platforms: [h200-x2, h200-x2-thin]
configs: [ddp, zero-0, zero-1, zero-2, zero-3, zero-3-offload, fsdp2-reshard, fsdp2-noreshard, fsdp2-reshard-offload]
arms: [defaults, matched]
repeats: {repeats}
"""
CELLS = 2 * 9 * 2
NO_OP_RATIO, REPORT_S, REPORT_S_PER_RUN, REPORT_BYTES = 1.2, 4.0, 11.0 / 9000, 10**9
"""Bounds: a no-op against an empty workflow timed beside it, at any number of runs; a report of 1,000 runs, and what
each further run may add; the largest process."""


def record(spec: RunSpec, index: int) -> Record:
    """A finished record of realistic size: every step's time and loss is in it."""
    steps = spec.total_steps
    step_s = 0.3 + 0.01 * (index % 7)
    ok = Diagnosis(outcome="ok", confidence="high")
    memory = Memory(peak_allocated_bytes=20 * 10**9 + index, peak_reserved_bytes=22 * 10**9, host_rss_peak_bytes=10**9)
    state = State(
        parameter_bytes=1, gradient_bytes=1, optimizer_bytes=1, host_bytes=0,
        bytes_per_parameter=8.0, expected_bytes_per_parameter=8.0,
    )  # fmt: skip
    measured = Measured(
        step_time_s=step_s, step_times_s=[step_s + 1e-4 * i for i in range(steps)],
        tokens_per_step=spec.tokens_per_step,
        tokens_per_s=spec.tokens_per_step / step_s, loss=[8.0 - 0.01 * i for i in range(steps)],
        grad_norm=[1.0] * steps, memory=memory, memory_by_rank=[memory] * spec.platform.world_size, state=state,
    )  # fmt: skip
    tried = Try(
        index=1, remedy=None, environment={}, diagnosis=ok, exits=(), launcher_exit_code=0, wall_s=60.0,
        last_step=steps - 1,
    )  # fmt: skip
    return Record(
        record_version=RECORD_VERSION, source=None, spec=spec, spec_hash=spec.hash(), outcome="ok", diagnosis=ok,
        started_at="2026-01-01T00:00:00+00:00", ended_at="2026-01-01T00:01:00+00:00", wall_s=60.0, tries=(tried,),
        measured=measured, resolved=None, environment=None, files=(),
    )  # fmt: skip


def prepare(folder: Path, runs: int) -> int:
    """Copy the checkout's code and lay a record for every run of a study of about `runs` runs."""
    for part in ("workflow", "config", "harness", "profiles"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", folder / "Snakefile")
    (folder / "local").symlink_to("profiles/local")
    (folder / "config/many.yaml").write_text(STUDY.format(repeats=max(1, round(runs / CELLS))), encoding="utf-8")
    matrix = load_matrix("many", folder)
    for index, spec in enumerate(matrix.runs):
        path = folder / "results/many" / spec.path() / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record(spec, index).to_json()), encoding="utf-8")
    return len(matrix.runs)


class Seconds(float):
    """Wall seconds of a call, with the CPU seconds it took beside them."""

    cpu: float = 0.0


def cpu_s() -> float:
    """CPU seconds of all children so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed(folder: Path, *arguments: str) -> Seconds:
    """Time one snakemake call that must succeed."""
    start, start_cpu = time.perf_counter(), cpu_s()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    spent = Seconds(time.perf_counter() - start)
    spent.cpu = cpu_s() - start_cpu
    return spent


def main() -> int:
    """Measure, print, and compare with the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="cached runs (default: 1000)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each call (default: 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        ours, empty = Path(scratch) / "ours", Path(scratch) / "empty"
        ours.mkdir()
        empty.mkdir()
        for name, text in EMPTY.items():
            (empty / name).write_text(text, encoding="utf-8")
        count = prepare(ours, options.runs)
        study = ("--profile", "local", "--config", "study=many")
        timed(empty, "--cores", "1")
        timed(ours, *study)
        # Interleaved, so that what else this machine does falls on both.
        pairs = [(timed(empty, "--cores", "1"), timed(ours, *study)) for _ in range(options.repeats)]
        reports = [timed(ours, "report", *study) for _ in range(options.repeats)]
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; {count} cached runs")
    for label, found in (
        ("empty workflow, no-op", [pair[0] for pair in pairs]),
        ("our workflow, no-op", [pair[1] for pair in pairs]),
        ("our workflow, report", reports),
    ):
        wall = f"min {min(found):6.2f} s  median {statistics.median(found):6.2f} s  max {max(found):6.2f} s"
        print(f"{label:24} {wall}  CPU {statistics.median(spent.cpu for spent in found):6.2f} s")
    return judge(count, pairs, reports)


def judge(count: int, pairs: list[tuple[Seconds, Seconds]], reports: list[Seconds]) -> int:
    """Compare medians with the bounds; the report's bound grows with the runs beyond 1,000."""
    base, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
    bounds = [
        ("no-op", ours, NO_OP_RATIO * base),
        ("report", statistics.median(reports), REPORT_S + REPORT_S_PER_RUN * max(0, count - 1000)),
    ]
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"largest process: {largest / 1e6:.0f} MB, bound {REPORT_BYTES / 1e6:.0f} MB")
    for label, found, bound in bounds:
        print(f"{label}: {found:.2f} s, bound {bound:.2f} s: {'holds' if found <= bound else 'MISSED'}")
    return int(largest > REPORT_BYTES or any(found > bound for _, found, bound in bounds))


if __name__ == "__main__":
    sys.exit(main())
