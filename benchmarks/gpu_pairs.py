"""Ours against the Hugging Face Trainer, side by side on the same GPUs, in one command.

    python benchmarks/gpu_pairs.py PLAN.json OUT --pairs 2

PLAN is what `snakemake plan` writes ({"specs": [...]}). Each spec is run by our harness and by trainer_peer.py in
turn (A B, then B A, so that drift favours neither). OUT/pairs.json keeps every number; the table gives the ratio
of medians and the range over pairs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.contract.record import read_record
from harness.contract.spec import RunSpec, parse_spec

ROOT = Path(__file__).resolve().parent.parent


def run_ours(spec_path: Path, out: Path) -> float | None:
    """Tokens per second of our harness on a spec; None when it did not finish."""
    command = [sys.executable, "-m", "harness", "run", str(spec_path), str(out)]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    record_path = out / "record.json"
    if not record_path.exists():
        return None
    record = read_record(record_path)
    return record.measured.tokens_per_s if record.measured else None


def run_peer(spec_path: Path, out: Path, world_size: int) -> float | None:
    """Tokens per second of the Trainer on the same spec; None when it did not finish."""
    result = out.with_suffix(".json")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    command = [*launcher, "benchmarks/trainer_peer.py", "--spec", str(spec_path), "--out", str(result)]
    with out.with_suffix(".log").open("wb") as log:
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    if not result.exists():
        return None
    tokens_per_s: float = json.loads(result.read_text(encoding="utf-8"))["tokens_per_s"]
    return tokens_per_s


def run_pairs(spec: RunSpec, folder: Path, pairs: int) -> dict[str, Any]:
    """All pairs of one spec, order alternating."""
    folder.mkdir(parents=True, exist_ok=True)
    spec_path = folder / "spec.json"
    spec_path.write_text(json.dumps(spec.to_json()), encoding="utf-8")
    ours: list[float | None] = []
    peer: list[float | None] = []
    for pair in range(pairs):
        for side in ("ours", "peer") if pair % 2 == 0 else ("peer", "ours"):
            begun_s = time.monotonic()
            if side == "ours":
                ours.append(run_ours(spec_path, folder / f"ours-{pair}"))
            else:
                peer.append(run_peer(spec_path, folder / f"peer-{pair}", spec.platform.world_size))
            value = (ours if side == "ours" else peer)[-1]
            print(f"{spec.identity.config} pair {pair + 1} {side}: {value} tok/s, {time.monotonic() - begun_s:.0f} s")
    return {
        "config": spec.identity.config,
        "micro_batch": spec.data.micro_batch,
        "ours_tokens_per_s": ours,
        "peer_tokens_per_s": peer,
    }


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
    options = parser.parse_args()
    specs = [parse_spec(plain) for plain in json.loads(options.plan.read_text(encoding="utf-8"))["specs"]]
    results = []
    for index, spec in enumerate(specs):
        results.append(run_pairs(spec, options.out / f"{index:02d}-{spec.identity.config}", options.pairs))
        (options.out / "pairs.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print("| config | micro-batch | ours tok/s | Trainer tok/s | ratio (range over pairs) |")
    print("| --- | --- | --- | --- | --- |")
    for result in results:
        print(table_row(result))


if __name__ == "__main__":
    main()
