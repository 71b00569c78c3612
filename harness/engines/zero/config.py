"""The configuration that DeepSpeed gets, written out in full. Imports no framework."""

from typing import Any

from harness.contract.engines.zero import ZeroSettings
from harness.contract.spec import Platform, RunSpec

_SHORT = {"float32": "fp32", "bfloat16": "bf16"}


def deepspeed_config(spec: RunSpec, settings: ZeroSettings, world_size: int) -> dict[str, Any]:
    """The whole configuration. Pure: the same spec gives the same dictionary anywhere."""
    data, numerics = spec.data, spec.numerics
    return {
        "train_batch_size": data.micro_batch * data.gradient_accumulation * world_size,
        "train_micro_batch_size_per_gpu": data.micro_batch,
        "gradient_accumulation_steps": data.gradient_accumulation,
        "gradient_clipping": spec.optimizer.clip_norm,
        "prescale_gradients": False,
        "bf16": {
            "enabled": numerics.parameter == "bfloat16",
            "bf16_master_weights_and_grads": False,
            "check_grad_overflow": settings.check_grad_overflow,
        },
        "fp16": {"enabled": False},
        "communication_data_type": _SHORT[numerics.reduce],
        "data_types": {"grad_accum_dtype": _SHORT[numerics.accumulate]},
        "zero_optimization": _zero(spec.platform, settings),
        "zero_allow_untested_optimizer": False,
        "zero_force_ds_cpu_optimizer": spec.optimizer.implementation == "deepspeed-cpu",
        "compile": {"deepcompile": settings.deepcompile},
        # Each of these puts a device synchronization into every step when it is on; the first is on by default. The key
        # "comms_logger" must not appear: DeepSpeed 0.19 turns the logger on whenever the key is there, whatever
        # `enabled` says, and the logger synchronizes after every collective (30 s a step for a 3B model at stage 3 on
        # two H200s).
        "timers": {"throughput": {"enabled": False, "synchronized": False}},
        "wall_clock_breakdown": False,
        "flops_profiler": {"enabled": False},
        "steps_per_print": 1_000_000_000,
        "dump_state": False,
    }


def _zero(platform: Platform, settings: ZeroSettings) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": settings.stage,
        "overlap_comm": settings.overlap_comm,
        "contiguous_gradients": settings.contiguous_gradients,
        "reduce_scatter": settings.reduce_scatter,
        "use_multi_rank_bucket_allreduce": settings.use_multi_rank_bucket_allreduce,
        "round_robin_gradients": settings.round_robin_gradients,
        "reduce_bucket_size": settings.reduce_bucket_size,
        "allgather_bucket_size": settings.allgather_bucket_size,
        "allgather_partitions": True,
        "sub_group_size": settings.sub_group_size,
    }
    if settings.stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": settings.prefetch_bucket_size,
            "stage3_param_persistence_threshold": settings.param_persistence_threshold,
            "stage3_max_live_parameters": settings.max_live_parameters,
            "stage3_max_reuse_distance": settings.max_reuse_distance,
            "stage3_gather_16bit_weights_on_model_save": False,
            "memory_efficient_linear": settings.memory_efficient_linear,
            "zero_quantized_weights": settings.quantized_weights,
            "zero_quantized_gradients": settings.quantized_gradients,
        }
    if settings.secondary_in_node:
        # A group of one rank would hold the whole model, and DeepSpeed takes 1 for "off".
        zero["zero_hpz_partition_size"] = platform.ranks_per_node
    # Pinning serves copies to a GPU; without one there is nothing to pin for.
    pin = settings.pin_memory and platform.device == "cuda"
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": pin}
    if settings.offload_param:
        zero["offload_param"] = {"device": "cpu", "pin_memory": pin}
    return zero
