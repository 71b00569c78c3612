"""The peer: Hugging Face Trainer on the same engine, numerics, micro-batch and data as one of our specs.

    torchrun --nproc-per-node 2 benchmarks/trainer_peer.py --spec SPEC.json --out RESULT.json

Reads the spec that `python -m harness run` reads, trains the same model for warm-up plus timed steps, and
writes the timed window (synchronized at its edges, as ours is) as step_time_s and tokens_per_s, with what it found
itself to be training with. Ends with an error when that is not the engine of the spec: accelerate falls back to DDP
where it cannot shard, on a CPU for example. Needs accelerate. `gpu_pairs.py` runs it side by side with ours.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from harness.contract.engines import parse_settings
from harness.contract.engines.fsdp2 import FsdpSettings
from harness.contract.engines.zero import ZeroSettings
from harness.contract.spec import RunSpec, read_spec


class SeededTokens(Dataset[dict[str, torch.Tensor]]):
    """As many seeded sequences as the run needs; labels are the tokens."""

    def __init__(self, spec: RunSpec) -> None:
        data, world_size = spec.data, spec.platform.world_size
        rows = spec.total_steps * data.gradient_accumulation * data.micro_batch * world_size
        generator = torch.Generator().manual_seed(data.seed)
        vocabulary = spec.model.config["vocab_size"]
        self.tokens = torch.randint(vocabulary, (rows, data.sequence_length), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Window(TrainerCallback):
    """Times the window after warm-up: barrier and synchronize at its edges, nothing inside."""

    def __init__(self, spec: RunSpec) -> None:
        self.first, self.last = spec.protocol.warmup_steps, spec.total_steps
        self.device = spec.platform.device
        self.begun_s = self.window_s = 0.0

    def now_s(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        return time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.first:
            self.begun_s = self.now_s()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.last:
            self.window_s = self.now_s() - self.begun_s


def deepspeed_config(settings: ZeroSettings, spec: RunSpec) -> dict[str, Any]:
    """ZeRO as the spec states it, in DeepSpeed's words; the batch sizes follow the Trainer's arguments."""
    communication = {"float32": "fp32", "bfloat16": "bf16"}[spec.numerics.reduce]
    return {
        "train_micro_batch_size_per_gpu": spec.data.micro_batch,
        "gradient_accumulation_steps": spec.data.gradient_accumulation,
        "gradient_clipping": spec.optimizer.clip_norm,
        "bf16": {"enabled": True},
        "communication_data_type": communication,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": settings.stage,
            "overlap_comm": settings.overlap_comm,
            "reduce_bucket_size": settings.reduce_bucket_size,
            "allgather_bucket_size": settings.allgather_bucket_size,
            "stage3_prefetch_bucket_size": settings.prefetch_bucket_size,
            "stage3_param_persistence_threshold": settings.param_persistence_threshold,
            "stage3_max_live_parameters": settings.max_live_parameters,
            "stage3_max_reuse_distance": settings.max_reuse_distance,
            "sub_group_size": settings.sub_group_size,
        },
    }


def engine_arguments(spec: RunSpec, block_class: str) -> dict[str, Any]:
    """TrainingArguments that select the same engine and setting."""
    settings = parse_settings(spec.engine.name, spec.engine.settings)
    if isinstance(settings, FsdpSettings):
        config = {
            "version": 2,
            "reshard_after_forward": settings.reshard_after_forward,
            "transformer_layer_cls_to_wrap": [block_class],
        }
        return {"fsdp": True, "fsdp_config": config}
    if isinstance(settings, ZeroSettings):
        return {"deepspeed": deepspeed_config(settings, spec)}
    return {}


def equal_reduction(trainer: Trainer, spec: RunSpec) -> None:
    """Let FSDP2 reduce in the spec's dtype: accelerate has no option for it and takes the compute dtype."""
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        policy = MixedPrecisionPolicy(
            param_dtype=getattr(torch, spec.numerics.compute), reduce_dtype=getattr(torch, spec.numerics.reduce)
        )
        plugin.mixed_precision_policy = policy


def found(trainer: Trainer) -> dict[str, Any]:
    """What the Trainer really trained with."""
    model, optimizer = trainer.model_wrapped, trainer.optimizer
    inner = getattr(model, "module", model)
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    stage = model.zero_optimization_stage() if hasattr(model, "zero_optimization_stage") else None
    return {
        "engine": "zero" if stage is not None else "fsdp2" if isinstance(inner, FSDPModule) else type(model).__name__,
        "stage": stage,
        "parameter": str(next(inner.parameters()).dtype),
        "policy": str(plugin.mixed_precision_policy) if plugin is not None else None,
        "optimizer": type(getattr(optimizer, "optimizer", optimizer)).__name__,
    }


def train(spec: RunSpec, scratch: str) -> tuple[float, dict[str, Any]]:
    """Train the spec under the Trainer; returns the timed window in seconds and what it trained with."""
    o = spec.optimizer
    if spec.model.activation_checkpointing == "selective":
        sys.exit("model.activation_checkpointing: found 'selective', which the Trainer does not have; no comparison")
    config_values = {k: v for k, v in spec.model.config.items() if k != "model_type"}
    config = AutoConfig.for_model(spec.model.config["model_type"], **config_values)
    config.use_cache = False
    with torch.device("meta"):
        blocks = AutoModelForCausalLM.from_config(config)._no_split_modules
    arguments = TrainingArguments(
        output_dir=scratch,
        max_steps=spec.total_steps,
        per_device_train_batch_size=spec.data.micro_batch,
        gradient_accumulation_steps=spec.data.gradient_accumulation,
        bf16=True,
        use_cpu=spec.platform.device == "cpu",
        learning_rate=o.learning_rate,
        adam_beta1=o.betas[0],
        adam_beta2=o.betas[1],
        adam_epsilon=o.epsilon,
        weight_decay=o.weight_decay,
        max_grad_norm=o.clip_norm,
        optim="adamw_torch_fused",
        lr_scheduler_type="constant",
        gradient_checkpointing=spec.model.activation_checkpointing is True,
        use_liger_kernel=spec.model.kernels == "liger",
        liger_kernel_config={"cross_entropy": True, "fused_linear_cross_entropy": False},
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        seed=spec.model.seed,
        **engine_arguments(spec, next(iter(blocks))),
    )
    device = torch.device(arguments.device)
    torch.manual_seed(spec.model.seed)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=spec.model.attention)
    window = Window(spec)
    trainer = Trainer(model=model, args=arguments, train_dataset=SeededTokens(spec), callbacks=[window])
    equal_reduction(trainer, spec)
    trainer.train()
    return window.window_s, found(trainer)


def main() -> None:
    """Parse, train, write rank 0's result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True, help="run spec, as for python -m harness run")
    parser.add_argument("--out", type=Path, required=True, help="result file that rank 0 writes")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    spec = read_spec(options.spec)
    window_s, what = train(spec, scratch=str(options.out.with_suffix(".scratch")))
    if what["engine"] != spec.engine.name and spec.engine.name != "ddp":
        sys.exit(f"the Trainer trained with {what}, expected {spec.engine.name}: no comparison")
    step_time_s = window_s / spec.protocol.timed_steps
    if int(os.environ.get("RANK", "0")) == 0:
        result = {"step_time_s": step_time_s, "tokens_per_s": spec.tokens_per_step / step_time_s, "found": what}
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
