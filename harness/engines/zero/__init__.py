"""DeepSpeed ZeRO, stages 0 to 3, with or without offload."""

import os
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.runtime import compiler
from deepspeed.runtime.zero.linear import zero3_linear_wrap
from torch import nn

from harness.contract.codec import decode
from harness.contract.engines.zero import ZeroSettings
from harness.contract.errors import SpecError
from harness.contract.measured import Found
from harness.contract.spec import Optimizer
from harness.engines.base import Context, Holding, dtype_name, require
from harness.engines.model import (
    Weights,
    build_meta_model,
    compile_parts,
    count_parameters,
    decoder_blocks,
    expert_blocks,
)
from harness.engines.torch_engine import optimizer_name, optimizer_tensors, torch_adamw
from harness.engines.zero.config import deepspeed_config
from harness.engines.zero.patches import (
    forget_shared_buffer,
    import_muon,
    refuse_hidden_synchronization,
    undo_setup_step,
)

import_muon(compiler)

_LINEAR = torch.nn.functional.linear


class _Unborn(nn.Module):
    """A module that hands `zero.Init` one parameter at a time, so that each is partitioned before the next is drawn."""

    def __init__(self, weights: Weights, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._weights = weights

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self._weights.stream(self.model)


def _adamw(spec: Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    arguments: dict[str, Any] = {
        "lr": spec.learning_rate,
        "betas": tuple(spec.betas),
        "eps": spec.epsilon,
        "weight_decay": spec.weight_decay,
    }
    if spec.implementation == "deepspeed-fused":
        from deepspeed.ops.adam import FusedAdam

        return FusedAdam(parameters, adam_w_mode=True, **arguments)
    if spec.implementation == "deepspeed-cpu":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(parameters, adamw_mode=True, fp32_optimizer_states=True, **arguments)
    return torch_adamw(spec, parameters)


class ZeroEngine:
    """DeepSpeed's engine around the model; gradients, clipping and updates are its own."""

    def __init__(self, context: Context) -> None:
        spec = context.spec
        settings = decode(ZeroSettings, spec.engine.settings, "engine.settings")
        _check(context, settings)
        self._settings = settings
        self._config = deepspeed_config(spec, settings, context.world_size)
        self._output_dtype: torch.dtype | None = None
        self._held: list[torch.Tensor] = []
        self._leaves: list[type[nn.Module]] = []
        # DeepSpeed reads its local rank from here even when the process group exists already.
        os.environ.setdefault("LOCAL_RANK", str(context.rank))
        deepspeed.init_distributed(dist_backend="nccl" if context.device.type == "cuda" else "gloo", verbose=False)
        if context.device.type == "cpu":
            forget_shared_buffer(context.rank)
        self.model = build_meta_model(context)
        self.parameters = count_parameters(self.model)
        weights = Weights(context, self.model)
        # DeepSpeed exchanges the function for the whole process and never puts the original back.
        torch.nn.functional.linear = _LINEAR
        if settings.stage == 3:
            deepspeed.zero.Init(module=_Unborn(weights, self.model), config_dict_or_path=self._config)
            self._leaves = _leaf_classes(self.model, settings)
            if self._leaves:
                deepspeed.utils.set_z3_leaf_modules(self.model, self._leaves)
        else:
            weights.materialize(self.model)
        if settings.compile:
            compile_parts(self.model, decoder_blocks(self.model))
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = _adamw(spec.optimizer, self._parameters)
        self._engine, *_ = deepspeed.initialize(
            model=self.model,
            optimizer=self._optimizer,
            model_parameters=self._parameters,
            config=self._config,
        )
        refuse_hidden_synchronization(self._engine, deepspeed)
        # The `defaults` arm keeps the extra step, because it runs each engine as shipped.
        if settings.stage == 0 and spec.identity.arm != "defaults":
            undo_setup_step(self._engine.optimizer, self._optimizer)
        if settings.deepcompile:
            self._engine.compile()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output = self._engine(input_ids=tokens, labels=tokens)
        self._output_dtype = output.logits.dtype
        return output.loss  # type: ignore[no-any-return]

    def backward(self, loss: torch.Tensor, *, last: bool, hold: bool = False) -> None:
        if hold and last and self._settings.stage == 1:
            # Stage 1 frees other ranks' gradients as soon as it has reduced them, inside `backward` itself.
            loss.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(self._hold))
        # DeepSpeed divides the loss by the number of micro-steps itself, and counts them in its `step`.
        self._engine.backward(loss)
        if not last:
            self._engine.step()

    def _hold(self) -> None:
        self._held = [p.grad for p in self._parameters if p.grad is not None]

    def step(self) -> torch.Tensor | float | None:
        self._engine.step()
        self._held = []
        norm: torch.Tensor | float | None = self._engine.get_global_grad_norm()
        return norm

    def parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, _own_part(p)) for name, p in self.model.named_parameters() if p.requires_grad)

    def holdings(self) -> Iterator[Holding]:
        for parameter in self._parameters:
            yield Holding("parameter", _own_part(parameter))
        for tensor in self._gradients():
            yield Holding("gradient", tensor)
        for tensor in self._masters():
            yield Holding("optimizer", tensor)
        for tensor in optimizer_tensors(self._optimizer):
            yield Holding("optimizer", tensor)

    def _masters(self) -> list[torch.Tensor]:
        wrapper = self._engine.optimizer
        if hasattr(wrapper, "fp32_partitioned_groups_flat"):
            return list(wrapper.fp32_partitioned_groups_flat)
        # Stages 0 to 2 put the masters in place of the model's parameters into the inner optimizer.
        return [p.data for group in self._optimizer.param_groups for p in group["params"]]

    def _gradients(self) -> Iterator[torch.Tensor]:
        wrapper = self._engine.optimizer
        yield from self._held
        for parameter in self._parameters:
            if parameter.grad is not None:
                yield parameter.grad
        if getattr(wrapper, "grad_partitions_flat_buffer", None) is not None:
            yield wrapper.grad_partitions_flat_buffer
        for part in (getattr(wrapper, "averaged_gradients", None) or {}).values():
            yield from (t for t in (part if isinstance(part, list) else [part]) if torch.is_tensor(t))
        for master in self._master_parameters():
            if master.grad is not None:
                yield master.grad

    def _master_parameters(self) -> list[torch.Tensor]:
        wrapper = self._engine.optimizer
        for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups"):
            if hasattr(wrapper, name):
                return list(getattr(wrapper, name))
        return []

    def found(self) -> Found:
        gradient = next(self._gradients(), None)
        masters = self._masters()
        communication = self._engine.communication_data_type
        return Found(
            parameter=dtype_name(self._parameters[0].dtype),
            compute=dtype_name(self._output_dtype) if self._output_dtype else None,
            gradient=dtype_name(gradient.dtype) if gradient is not None else None,
            reduce=dtype_name(communication),
            master=dtype_name(masters[0].dtype) if masters else None,
            optimizer_state=next((dtype_name(t.dtype) for t in optimizer_tensors(self._optimizer)), None),
            optimizer_class=optimizer_name(self._optimizer),
        )

    def resolved(self) -> dict[str, object]:
        return {
            "config": self._config,
            "zero_optimization": self._engine._config.zero_config.model_dump(mode="json"),
            "optimizer_wrapper": type(self._engine.optimizer).__name__,
            "leaf_blocks": self._settings.leaf_blocks,
            "leaf_modules": [cls.__name__ for cls in self._leaves],
            "compile": self._settings.compile,
            "found": self._found_settings(),
        }

    def _found_settings(self) -> dict[str, object]:
        """What the running engine does, for settings that a configuration could name without effect."""
        wrapper = self._engine.optimizer
        return {
            "leaves": sum(deepspeed.utils.z3_leaf_module(module) for module in self.model.modules()),
            "memory_efficient_linear": torch.nn.functional.linear is zero3_linear_wrap,
            "check_grad_overflow": getattr(wrapper, "check_grad_overflow", None),
            "quantized_weights": self._settings.stage == 3 and wrapper.parameter_offload.zero_quantized_weights,
            "quantized_gradients": getattr(wrapper, "all2all_process_group", None) is not None,
            # Each step frees the copies, but the number of groups in which they are kept stays known.
            "secondary_in_node": any(getattr(p, "ds_secondary_tensor_num_of_groups", 1) > 1 for p in self._parameters),
        }


def _leaf_classes(model: nn.Module, settings: ZeroSettings) -> list[type[nn.Module]]:
    """Modules that stage 3 gathers as one. This is always so for blocks of experts: each step sends tokens to other
    experts, so ranks that gathered experts one by one would wait for each other forever. DeepSpeed handles three such
    families itself."""
    if settings.leaf_blocks:
        return [type(decoder_blocks(model)[0])]
    return list(dict.fromkeys(type(block) for block in expert_blocks(model).values()))


def _own_part(parameter: nn.Parameter) -> torch.Tensor:
    # Stage 3 keeps a rank's part beside an empty parameter. A persistent parameter stays gathered, but a gathered copy
    # does not count as state, as with FSDP2 between forward and backward.
    part = getattr(parameter, "ds_tensor", None)
    return parameter.data if part is None else part.data


def _check(context: Context, settings: ZeroSettings) -> None:
    spec = context.spec
    for name in ("quantized_weights", "quantized_gradients", "deepcompile"):
        if getattr(settings, name) and context.device.type != "cuda":
            raise SpecError(f"engine.settings.{name}: found a run on the CPU; DeepSpeed has it on NVIDIA GPUs only")
    if settings.quantized_gradients and spec.platform.nodes == 1:
        raise SpecError("engine.settings.quantized_gradients: found one node; DeepSpeed quantizes between nodes only")
    require(spec, compute=(spec.numerics.parameter,), master=("float32",), optimizer_state=("float32",))
    if spec.optimizer.implementation == "deepspeed-cpu" and not settings.offload_optimizer:
        raise SpecError(
            "optimizer.implementation: found 'deepspeed-cpu', which steps only on offloaded state; expected "
            "offload_optimizer beside it, or another implementation"
        )
    if spec.optimizer.implementation == "deepspeed-fused" and settings.offload_optimizer:
        raise SpecError(
            "optimizer.implementation: found 'deepspeed-fused', which cannot step on offloaded state; expected "
            "deepspeed-cpu or a torch implementation"
        )


build = ZeroEngine
