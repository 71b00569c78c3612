"""The peer: torchtitan 0.2.2 on the architecture, micro-batch, tokens and optimizer of one of our specs (Qwen3 only).

    torchrun --nproc-per-node 1 benchmarks/torchtitan_peer.py --spec SPEC.json --out RESULT.json
    python benchmarks/torchtitan_peer.py --spec SPEC.json --check     # no GPU: the same model? prints both sizes

Its own Trainer builds model, sharding and optimizer and runs its own training step. Tokens, steps and clock are ours:
the timed window is synchronized at its edges and holds nothing but steps. Several ranks shard with its FSDP2. On one
rank torchtitan shards nothing and trains under autocast, so hold it against `ddp`. `compile` of the spec's engine
compiles its blocks and loss too. Needs `pip install torchtitan==0.2.2`, which runs on torch 2.11. `gpu_pairs.py --peer
torchtitan` runs it side by side with ours. Of this script, only `--check` has been run yet, on a CPU.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.config import JobConfig
from torchtitan.models.qwen3 import Qwen3Model, Qwen3ModelArgs, get_train_spec
from torchtitan.protocols.train_spec import register_train_spec

from harness.contract.spec import RunSpec, read_spec
from harness.measure.shapes import shape_of

NAME, FLAVOR = "ours", "spec"


class SeededTokens(BaseDataLoader):
    """Seeded batches without end; every token predicts the next one, as in a Hugging Face causal LM."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self._spec, self._generator = spec, torch.Generator().manual_seed(spec.data.seed + rank)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        data, vocabulary = self._spec.data, self._spec.model.config["vocab_size"]
        while True:
            tokens = torch.randint(vocabulary, (data.micro_batch, data.sequence_length), generator=self._generator)
            labels = tokens.roll(-1, dims=1)
            labels[:, -1] = IGNORE_INDEX
            yield {"input": tokens}, labels

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def model_arguments(spec: RunSpec) -> Qwen3ModelArgs:
    """torchtitan's words for the spec's architecture. Ends with an error for another family."""
    config = spec.model.config
    if config["model_type"] != "qwen3":
        sys.exit(f"model.config.model_type: found {config['model_type']!r}; this peer is written for qwen3")
    rope = config.get("rope_parameters") or config
    return Qwen3ModelArgs(
        dim=config["hidden_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        hidden_dim=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        norm_eps=config["rms_norm_eps"],
        rope_theta=rope["rope_theta"],
        qk_norm=True,
        max_seq_len=spec.data.sequence_length,
        enable_weight_tying=config["tie_word_embeddings"],
    )


def job(spec: RunSpec, scratch: str) -> JobConfig:
    """torchtitan's configuration of the spec: fp32 masters, bf16 compute, fp32 reduction, fused AdamW."""
    found, o = JobConfig(), spec.optimizer
    found.job.dump_folder = scratch
    found.model.name, found.model.flavor = NAME, FLAVOR
    found.optimizer.lr, found.optimizer.eps, found.optimizer.weight_decay = o.learning_rate, o.epsilon, o.weight_decay
    found.optimizer.beta1, found.optimizer.beta2 = o.betas
    found.optimizer.implementation = "fused"
    found.lr_scheduler.warmup_steps = 0
    found.training.local_batch_size = spec.data.micro_batch
    found.training.global_batch_size = (
        spec.data.micro_batch * spec.data.gradient_accumulation * spec.platform.world_size
    )
    found.training.seq_len = spec.data.sequence_length
    found.training.max_norm = spec.optimizer.clip_norm or float("inf")
    found.training.steps = spec.total_steps
    settings = spec.engine.settings
    found.parallelism.fsdp_reshard_after_forward = "always" if settings.get("reshard_after_forward", True) else "never"
    found.activation_checkpoint.mode = {False: "none", True: "full"}.get(
        spec.model.activation_checkpointing, "selective"
    )
    found.activation_checkpoint.selective_ac_option = "op"
    found.compile.enable = bool(settings.get("compile"))
    # Its log waits for the device: once after the first step, then never.
    found.metrics.log_freq = 1_000_000
    return found


def build(spec: RunSpec, scratch: str) -> Any:
    """torchtitan's Trainer of the spec's model on our tokens."""
    from torchtitan.train import Trainer

    known = get_train_spec()
    known.model_args = {FLAVOR: model_arguments(spec)}
    known.build_tokenizer_fn = None
    known.build_dataloader_fn = lambda dp_rank, **_: SeededTokens(spec, dp_rank)
    register_train_spec(NAME, known)
    return Trainer(job(spec, scratch))


def timed(trainer: Any, spec: RunSpec) -> float:
    """Seconds of the timed window: barrier and synchronize at its edges, nothing but steps inside."""
    batches = trainer.batch_generator(trainer.dataloader)
    begun_s = 0.0
    for step in range(1, spec.total_steps + 1):
        if step == spec.protocol.warmup_steps + 1:
            begun_s = now_s()
        trainer.step = step
        trainer.train_step(batches)
    return now_s() - begun_s


def now_s() -> float:
    torch.cuda.synchronize()
    dist.barrier()
    return time.perf_counter()


def check(spec: RunSpec) -> dict[str, int]:
    """Parameters of both sides' models, tied ones counted once; ends with an error when they differ."""
    with torch.device("meta"):
        theirs = sum(p.numel() for p in Qwen3Model(model_arguments(spec)).parameters())
    shape = shape_of(spec.model.config)
    ours = shape.parameters if shape else 0
    if ours != theirs:
        sys.exit(f"ours has {ours:,} parameters, torchtitan's {theirs:,}: not the same architecture")
    return {"ours": ours, "torchtitan": theirs}


def main() -> None:
    """Parse, train, write rank 0's result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True, help="run spec, as for python -m harness run")
    parser.add_argument("--out", type=Path, help="result file that rank 0 writes")
    parser.add_argument("--check", action="store_true", help="only compare the two models' sizes")
    options = parser.parse_args()
    spec = read_spec(options.spec)
    sizes = check(spec)
    if options.check:
        print(json.dumps(sizes))
        return
    with tempfile.TemporaryDirectory() as scratch:
        trainer = build(spec, scratch)
        step_time_s = timed(trainer, spec) / spec.protocol.timed_steps
    if int(os.environ.get("RANK", "0")) == 0:
        kind = type(trainer.model_parts[0]).__name__
        result = {"step_time_s": step_time_s, "tokens_per_s": spec.tokens_per_step / step_time_s, "found": kind}
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
