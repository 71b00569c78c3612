"""Ours against a peer (the Hugging Face Trainer or torchtitan), side by side on the same GPUs, in one command.

    python benchmarks/gpu_pairs.py PLAN.json OUT --pairs 2

PLAN is what `snakemake plan` writes ({"specs": [...]}). Each spec is run by our harness and by <peer>_peer.py in
turn (A B, then B A, so that drift favours neither). OUT/pairs.json keeps every number; the table gives the ratio
of medians and the range over pairs. Every spec's first pair comes before any second one, so that a budget that ends
early leaves something of each.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.contract.record import read_record
from harness.contract.spec import RunSpec, parse_spec
from harness.supervisor.extensions import plain_architectures

ROOT = Path(__file__).resolve().parent.parent
PEER_TIMEOUT_S = 240


def run_ours(spec_path: Path, out: Path) -> float | None:
    """Tokens per second of our harness on a spec; None when it did not finish."""
    command = [sys.executable, "-m", "harness", "run", str(spec_path), str(out)]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    record_path = out / "record.json"
    if not record_path.exists():
        return None
    record = read_record(record_path)
    return record.measured.tokens_per_s if record.measured else None


def run_peer(peer: str, spec_path: Path, out: Path, world_size: int) -> float | None:
    """Tokens per second of the peer on the same spec; None when it did not finish."""
    result = out.with_suffix(".json")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    command = [*launcher, f"benchmarks/{peer}_peer.py", "--spec", str(spec_path), "--out", str(result)]
    environment = os.environ | plain_architectures() | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    with out.with_suffix(".log").open("wb") as log, contextlib.suppress(subprocess.TimeoutExpired):
        arguments: dict[str, Any] = {"cwd": ROOT, "env": environment, "stdout": log, "stderr": subprocess.STDOUT}
        subprocess.run(command, check=False, timeout=PEER_TIMEOUT_S, **arguments)
    if not result.exists():
        return None
    tokens_per_s: float = json.loads(result.read_text(encoding="utf-8"))["tokens_per_s"]
    return tokens_per_s


class Pairs:
    """One spec's folder and what both sides made of it so far."""

    def __init__(self, spec: RunSpec, folder: Path, peer: str) -> None:
        self.spec, self._folder, self._peer = spec, folder, peer
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "spec.json"
        self._path.write_text(json.dumps(spec.to_json()), encoding="utf-8")
        self._values: dict[str, list[float | None]] = {"ours": [], "peer": []}
        self.took_s = 0.0

    def run(self, pair: int) -> None:
        """One pair, the order alternating from pair to pair."""
        begun_s = time.monotonic()
        for side in ("ours", "peer") if pair % 2 == 0 else ("peer", "ours"):
            if side == "ours":
                value = run_ours(self._path, self._folder / f"ours-{pair}")
            else:
                value = run_peer(self._peer, self._path, self._folder / f"peer-{pair}", self.spec.platform.world_size)
            self._values[side].append(value)
            so_far_s = time.monotonic() - begun_s
            print(f"{self.spec.identity.config} pair {pair + 1} {side}: {value} tok/s, {so_far_s:.0f} s", flush=True)
        self.took_s = time.monotonic() - begun_s

    def to_json(self) -> dict[str, Any]:
        """What pairs.json keeps."""
        return {
            "config": self.spec.identity.config,
            "micro_batch": self.spec.data.micro_batch,
            "ours_tokens_per_s": self._values["ours"],
            "peer_tokens_per_s": self._values["peer"],
        }


def run_all(pairs: list[Pairs], count: int, out: Path, until_s: float) -> None:
    """The first pair of every spec, then the second of every spec, while there is time for another like it."""
    for index in range(count):
        for one in pairs:
            if time.monotonic() + one.took_s > until_s:
                print(f"{one.spec.identity.config} pair {index + 1}: left out, no time is left", flush=True)
                continue
            one.run(index)
            (out / "pairs.json").write_text(json.dumps([p.to_json() for p in pairs], indent=2) + "\n", "utf-8")


def table_row(result: dict[str, Any]) -> str:
    """One Markdown row: medians and the ratio with its range over pairs."""
    ours = [v for v in result["ours_tokens_per_s"] if v is not None]
    peer = [v for v in result["peer_tokens_per_s"] if v is not None]
    name = f"| {result['config']} | {result['micro_batch']} "
    if not ours or not peer:
        return f"{name}| {ours or 'failed'} | {peer or 'failed'} | |"
    ratios = [a / b for a, b in zip(result["ours_tokens_per_s"], result["peer_tokens_per_s"], strict=True) if a and b]
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}" if ratios else "no whole pair"
    a, b = statistics.median(ours), statistics.median(peer)
    return f"{name}| {a:.0f} | {b:.0f} | {a / b:.3f} ({spread}) |"


def main() -> None:
    """Run every spec of the plan in pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no pair that would end after it")
    parser.add_argument(
        "--peer", choices=("trainer", "torchtitan"), default="trainer", help="benchmarks/<peer>_peer.py"
    )
    options = parser.parse_args()
    until_s = time.monotonic() + options.budget_s
    specs = [parse_spec(plain) for plain in json.loads(options.plan.read_text(encoding="utf-8"))["specs"]]
    pairs = [Pairs(spec, options.out / f"{i:02d}-{spec.identity.config}", options.peer) for i, spec in enumerate(specs)]
    run_all(pairs, options.pairs, options.out, until_s)
    print("| config | micro-batch | ours tok/s | peer tok/s | ratio (range over pairs) |")
    print("| --- | --- | --- | --- | --- |")
    for one in pairs:
        print(table_row(one.to_json()))


if __name__ == "__main__":
    main()
