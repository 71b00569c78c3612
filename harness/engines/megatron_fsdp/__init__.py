"""megatron-fsdp: a unit per decoder block and one for the rest; parameters, gradients and optimizer are sharded."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron_fsdp import MixedPrecisionPolicy, fully_shard_model, fully_shard_optimizer, param_and_grad_buffer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from harness.contract.codec import decode
from harness.contract.engines.megatron_fsdp import MegatronSettings
from harness.contract.measured import Found
from harness.engines.base import Context, Holding, dtype, dtype_name, require
from harness.engines.megatron_fsdp.stand_ins import stand_in_for_cuda
from harness.engines.model import Weights, build_meta_model, compile_parts, count_parameters, decoder_blocks
from harness.engines.torch_engine import (
    TorchEngine,
    local_part,
    optimizer_name,
    optimizer_tensors,
    torch_adamw,
)


class MegatronFsdpEngine(TorchEngine):
    """torch's AdamW steps on float32 masters; the library copies them into its bfloat16 weights after each step.

    Every micro-step reduces, as with FSDP2, ZeRO-2 and ZeRO-3.
    """

    def __init__(self, context: Context) -> None:
        spec = context.spec
        require(spec, compute=(spec.numerics.parameter,), master=("float32",), optimizer_state=("float32",))
        self._spec, self._settings = spec, decode(MegatronSettings, spec.engine.settings, "engine.settings")
        self._output_dtype: torch.dtype | None = None
        self._reduce_dtype: torch.dtype | None = None
        self._cpu = context.device.type == "cpu"
        if self._cpu:
            stand_in_for_cuda()
            # This call only checks the tensors, and moves them to a GPU for that.
            param_and_grad_buffer.validate_uneven_dtensor = lambda _: None
        self.model = build_meta_model(context)
        self.parameters = count_parameters(self.model)
        self._wrapped = self.wrap(context)
        self._buffer = self._wrapped.param_and_grad_buffer
        self._named = {name: p for name, p in self._buffer.optimizer_named_parameters if p.requires_grad}
        self._parameters = list(dict.fromkeys(self._named.values()))
        self._optimizer = torch_adamw(spec.optimizer, self._parameters)
        before = [local_part(p.data).clone() for p in self._parameters]
        fully_shard_optimizer(self._optimizer, preproc_state_dict_for_dcp_ckpt=False)
        # The `defaults` arm keeps the extra step, because it runs each engine as shipped.
        if spec.identity.arm != "defaults":
            self._undo_setup_step(before)

    def wrap(self, context: Context) -> nn.Module:
        numerics, settings = self._spec.numerics, self._settings
        blocks = decoder_blocks(self.model)
        if settings.compile:
            compile_parts(self.model, blocks)
        # The whole model lies on the device at first, because the library shards an existing model and does not create
        # weights.
        Weights(context, self.model).materialize(self.model)
        mesh = init_device_mesh(context.device.type, (context.world_size, 1), mesh_dim_names=("shard", "tensor"))
        wrapped: nn.Module = fully_shard_model(
            self.model,
            device_mesh=mesh,
            dp_shard_dim="shard",
            tp_dim="tensor",
            fsdp_unit_modules=[type(blocks[0])],
            zero_dp_strategy="optim_grads_params",
            device=context.device,
            mixed_precision_policy=MixedPrecisionPolicy(
                main_params_dtype=dtype(numerics.master),
                main_grads_dtype=dtype(numerics.accumulate),
                grad_comm_dtype=dtype(numerics.reduce),
            ),
            overlap_grad_reduce=settings.overlap_grad_reduce,
            overlap_param_gather=settings.overlap_param_gather,
            fsdp_double_buffer=settings.double_buffer,
            preproc_state_dict_for_dcp_ckpt=False,
        )
        if self._cpu:
            # gloo cannot scale while it reduces.
            wrapped.ddp_config.gradient_reduce_div_fusion = False  # type: ignore[union-attr]
        return wrapped

    def _undo_setup_step(self, before: list[torch.Tensor]) -> None:
        """Start where every other engine starts: the library steps once with zero gradients to allocate the moments.

        That applies weight decay and leaves the step counter at 1, so the first real update would be too small.
        """
        with torch.no_grad():
            for parameter, value in zip(self._parameters, before, strict=True):
                local_part(parameter.data).copy_(value)
        for state in self._optimizer.state.values():
            state["step"].zero_()

    def step(self) -> torch.Tensor:
        gradients = [local_part(p.grad) for p in self._parameters if p.grad is not None]
        norm = _clip(gradients, self._spec.optimizer.clip_norm, self._buffer.device)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, local_part(p.data)) for name, p in self._named.items())

    def holdings(self) -> Iterator[Holding]:
        for group in self._buffer.parameter_groups:
            if group.model_weight_buffer is not None:
                yield Holding("parameter", group.model_weight_buffer.data)
            if group.main_grad_buffer is not None:
                yield Holding("gradient", group.main_grad_buffer.data)
            if group.main_weight_buffer is not None:
                yield Holding("optimizer", group.main_weight_buffer.data)
        for tensor in optimizer_tensors(self._optimizer):
            yield Holding("optimizer", local_part(tensor))

    def found(self) -> Found:
        group = next(g for g in self._buffer.parameter_groups if g.requires_grad)
        return Found(
            parameter=dtype_name(group.model_weight_buffer.data.dtype),
            compute=dtype_name(self._output_dtype) if self._output_dtype else None,
            gradient=dtype_name(group.main_grad_buffer.data.dtype),
            reduce=dtype_name(self._reduce_dtype) if self._reduce_dtype else None,
            master=dtype_name(group.main_weight_buffer.data.dtype),
            optimizer_state=next((dtype_name(t.dtype) for t in optimizer_tensors(self._optimizer)), None),
            optimizer_class=optimizer_name(self._optimizer),
        )

    def resolved(self) -> dict[str, object]:
        config = self._wrapped.ddp_config
        names = ("overlap_grad_reduce", "overlap_param_gather", "fsdp_double_buffer", "data_parallel_sharding_strategy")
        return {
            "units": "one block each, then the rest",
            "compile": self._settings.compile,
            "found": {name: getattr(config, name) for name in names},
            "stand_ins_for_cuda": self._cpu,
        }


def _clip(gradients: list[torch.Tensor], clip_norm: float, device: torch.device) -> torch.Tensor:
    """Clip to the global norm in place (0: only measure it); returns the norm before, without synchronizing.

    torch's own function would treat the pieces as evenly sharded tensors, but some ranks have no piece of a parameter.
    """
    norms = torch._foreach_norm(gradients) if gradients else [torch.zeros((), device=device)]
    total = torch.stack([n.float() for n in norms]).square().sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    if clip_norm > 0 and gradients:
        torch._foreach_mul_(gradients, (clip_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


build = MegatronFsdpEngine
