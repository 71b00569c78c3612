"""DeepSpeed ZeRO, stages 0 to 3, with or without offload."""

import os
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.runtime import compiler
from torch import nn

from harness.contract.codec import decode
from harness.contract.engines.zero import ZeroSettings
from harness.contract.errors import SpecError
from harness.contract.measured import Found
from harness.contract.spec import Optimizer
from harness.engines.base import Context, Holding
from harness.engines.model import build_meta_model, compile_parts, count_parameters, decoder_blocks
from harness.engines.numerics import dtype_name, require
from harness.engines.optimizer import optimizer_name, optimizer_tensors, torch_adamw
from harness.engines.weights import Weights
from harness.engines.zero_config import deepspeed_config
from harness.engines.zero_habits import (
    forget_shared_buffer,
    import_muon,
    refuse_hidden_synchronization,
    undo_setup_step,
)

import_muon(compiler)


class _Unborn(nn.Module):
    """Hands `zero.Init` one parameter at a time, so that each is partitioned before the next is drawn."""

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

    def __init__(self, context: Context, settings: ZeroSettings) -> None:
        spec = context.spec
        _check(context, settings)
        self._spec, self._settings, self._world_size = spec, settings, context.world_size
        self._config = deepspeed_config(spec, settings, context.world_size)
        self._output_dtype: torch.dtype | None = None
        self._held: list[torch.Tensor] = []
        # DeepSpeed reads its local rank from here even when the process group exists already.
        os.environ.setdefault("LOCAL_RANK", str(context.rank))
        deepspeed.init_distributed(dist_backend="nccl" if context.device.type == "cuda" else "gloo", verbose=False)
        if context.device.type == "cpu":
            forget_shared_buffer(context.rank)
        self.model = build_meta_model(context)
        self.parameters = count_parameters(self.model)
        weights = Weights(context, self.model)
        if settings.stage == 3:
            deepspeed.zero.Init(module=_Unborn(weights, self.model), config_dict_or_path=self._config)
            if settings.leaf_blocks:
                deepspeed.utils.set_z3_leaf_modules(self.model, [type(decoder_blocks(self.model)[0])])
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
        # The `defaults` arm runs each engine as shipped, this included.
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
            "compile": self._settings.compile,
        }


def _own_part(parameter: nn.Parameter) -> torch.Tensor:
    # Stage 3 keeps a rank's part beside an empty parameter. A persistent one is gathered for good, but a gathered
    # copy is no more state here than FSDP2's between forward and backward.
    part = getattr(parameter, "ds_tensor", None)
    return parameter.data if part is None else part.data


def _check(context: Context, settings: ZeroSettings) -> None:
    spec = context.spec
    require(spec, compute=(spec.numerics.parameter,), master=("float32",), optimizer_state=("float32",))
    if spec.optimizer.implementation == "deepspeed-cpu" and not settings.offload_optimizer:
        raise SpecError("optimizer.implementation: 'deepspeed-cpu' needs offload_optimizer")
    if spec.optimizer.implementation == "deepspeed-fused" and settings.offload_optimizer:
        raise SpecError("optimizer.implementation: 'deepspeed-fused' cannot step on offloaded state")


def build(context: Context) -> ZeroEngine:
    """Build the engine from the spec's settings."""
    settings = decode(ZeroSettings, context.spec.engine.settings, "engine.settings")
    return ZeroEngine(context, settings)
