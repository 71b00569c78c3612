"""megatron-fsdp: NVIDIA's FSDP, which keeps flat buffers of bfloat16 weights, float32 masters and gradients."""

from msgspec import Struct

from harness.contract.engines.descriptor import Config, Descriptor, Numerics, Trials, bf16_compute


class MegatronSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of megatron-fsdp 0.6, with its own defaults."""

    overlap_grad_reduce: bool = True
    """Reduce gradients on a stream of their own while backward goes on."""
    overlap_param_gather: bool = True
    """Gather parameters ahead of use, on a stream of their own."""
    double_buffer: bool = False
    """Gather and reduce in two fixed buffers by turns, instead of allocating for each unit."""
    compile: bool = False
    """torch.compile each decoder block and the loss."""


_TRIALS: Trials = (
    {},
    {"double_buffer": True},
    {"overlap_param_gather": False},
    {"compile": True},
    {"compile": True, "double_buffer": True},
    {"compile": True, "overlap_param_gather": False},
)

MEGATRON_FSDP = Descriptor(
    name="megatron_fsdp",
    launcher="torchrun",
    settings=MegatronSettings,
    configs=(Config(name="megatron-fsdp", engine="megatron_fsdp", shards="parameters", usual=False),),
    # It keeps a bf16 working copy beside its fp32 masters in every arm, as ZeRO does.
    shipped=bf16_compute(parameter="bfloat16", master="float32", reduce="bfloat16"),
    matched=Numerics(
        parameter="bfloat16",
        compute="bfloat16",
        master="float32",
        optimizer_state="float32",
        reduce="float32",
        accumulate="float32",
    ),
    trials=lambda _: _TRIALS,
)
