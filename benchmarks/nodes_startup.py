"""What a second node adds to the start of a run: two supervisors on loopback beside one, in alternating pairs.

    python benchmarks/nodes_startup.py [--pairs 5]

Prints, per pair, seconds from the start of the supervisors to the first timed step of all ranks, and the median
difference. Both runs have two ranks, model tiny and FSDP2.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from harness.contract.record import read_record  # noqa: E402
from harness.contract.spec import RunSpec  # noqa: E402
from tests.engines.specs import make_spec  # noqa: E402

PORT = 14700


def startup_s(spec: RunSpec, folder: Path) -> float:
    """Run a spec on its nodes, all of them on this host; seconds of the command less its timed window."""
    started_s = time.monotonic()
    running = []
    for node in range(spec.platform.nodes):
        place = folder / f"node-{node}"
        place.mkdir(parents=True)
        (place / "spec.json").write_text(json.dumps(spec.to_json()), encoding="utf-8")
        command = [sys.executable, "-m", "harness", "run", str(place / "spec.json"), str(place / "out")]
        where = ["--node-rank", str(node), "--rendezvous", f"127.0.0.1:{PORT}"] if spec.platform.nodes > 1 else []
        running.append(subprocess.Popen([*command, *where], cwd=ROOT, stdout=subprocess.DEVNULL))
    codes = [process.wait(timeout=600) for process in running]
    ended_s = time.monotonic()
    record = read_record(folder / "node-0" / "out" / "record.json")
    if any(codes) or record.outcome != "ok" or record.measured is None:
        raise SystemExit(f"{spec.platform.name}: {record.outcome}: {record.diagnosis.sentence}")
    return ended_s - started_s - sum(record.measured.step_times_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    added = []
    with tempfile.TemporaryDirectory() as scratch:
        for pair in range(pairs):
            found: dict[int, float] = {}
            for nodes in ((1, 2), (2, 1))[pair % 2]:
                spec = make_spec("fsdp2-reshard", platform__nodes=nodes, protocol__timed_steps=2)
                found[nodes] = startup_s(spec, Path(scratch) / f"{pair}-{nodes}")
            added.append(found[2] - found[1])
            print(f"pair {pair + 1}: one node {found[1]:.2f} s, two nodes {found[2]:.2f} s, {added[-1]:+.2f} s")
    print(f"median added by the second node: {statistics.median(added):+.2f} s over {pairs} pairs")


if __name__ == "__main__":
    main()
