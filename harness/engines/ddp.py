"""DistributedDataParallel: nothing is sharded; the reference that the others are compared with."""

import warnings
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from harness.contract.codec import decode
from harness.contract.engines.ddp import DdpSettings
from harness.contract.measured import Found
from harness.engines.base import Context, Holding
from harness.engines.model import build_meta_model, compile_parts, count_parameters, decoder_blocks
from harness.engines.numerics import dtype, dtype_name, require
from harness.engines.optimizer import clip_gradients, optimizer_name, optimizer_tensors, torch_adamw
from harness.engines.weights import Weights
from harness.measure.collectives import reduced_bytes


class _Cast(nn.Module):
    """Parametrization that hands out a parameter in the compute dtype; the master stays what it is."""

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__()
        self._compute = compute

    def forward(self, master: torch.Tensor) -> torch.Tensor:
        return master.to(self._compute)


def _cast_on_access(model: nn.Module, compute: torch.dtype) -> None:
    # Casting where a module reads its weight, not around the whole forward: activation checkpointing
    # reads it again in backward, and tied modules each cast the one master they share.
    for module in list(model.modules()):
        for name in [n for n, p in module._parameters.items() if p is not None]:
            parametrize.register_parametrization(module, name, _Cast(compute), unsafe=True)


def _wrap(model: nn.Module, context: Context, settings: DdpSettings) -> DistributedDataParallel:
    with warnings.catch_warnings():
        # torch 2.13 would have `forward_sync_buffers`, which 2.11 does not know.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        return DistributedDataParallel(
            model,
            device_ids=[context.device] if context.device.type == "cuda" else None,
            bucket_cap_mb=settings.bucket_cap_mb,
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            broadcast_buffers=False,
            # Every rank has drawn the same weights.
            init_sync=False,
        )


class DdpEngine:
    """One full copy of everything on every rank."""

    def __init__(self, context: Context, settings: DdpSettings) -> None:
        spec, numerics = context.spec, context.spec.numerics
        require(
            spec,
            master=(numerics.parameter,),
            optimizer_state=(numerics.parameter,),
            accumulate=(numerics.parameter,),
            compute=("float32", "bfloat16") if numerics.parameter == "float32" else ("bfloat16",),
            reduce=(numerics.parameter, "bfloat16"),
        )
        self._spec = spec
        self._settings = settings
        self._compute = dtype(numerics.compute)
        self.model = build_meta_model(context)
        self.parameters = count_parameters(self.model)
        Weights(context, self.model).materialize(self.model)
        if numerics.compute != numerics.parameter:
            _cast_on_access(self.model, self._compute)
        if settings.compile:
            compile_parts(self.model, decoder_blocks(self.model))
        self._ddp = _wrap(self.model, context, settings)
        if numerics.reduce != numerics.parameter:
            self._ddp.register_comm_hook(None, bf16_compress_hook)
        self._parameters = [p for p in self._ddp.parameters() if p.requires_grad]
        self._optimizer = torch_adamw(spec.optimizer, self._parameters)
        self._output_dtype: torch.dtype | None = None
        self._reduce_dtype: torch.dtype | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output = self._ddp(input_ids=tokens, labels=tokens)
        self._output_dtype = output.logits.dtype
        return output.loss  # type: ignore[no-any-return]

    def backward(self, loss: torch.Tensor, *, last: bool, hold: bool = False) -> None:
        with nullcontext() if last else self._ddp.no_sync(), reduced_bytes() if hold else nullcontext() as reduced:
            (loss / self._spec.data.gradient_accumulation).backward()
        # Without a hook the reducer itself reduces the gradients, as they are.
        if hold and last:
            gradient = self._parameters[0].grad
            self._reduce_dtype = max(reduced, key=lambda kind: reduced[kind]) if reduced else gradient.dtype

    def step(self) -> torch.Tensor:
        norm = clip_gradients(self._parameters, self._spec.optimizer.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def holdings(self) -> Iterator[Holding]:
        for parameter in self._parameters:
            yield Holding("parameter", parameter.data)
            if parameter.grad is not None:
                yield Holding("gradient", parameter.grad)
        for tensor in optimizer_tensors(self._optimizer):
            yield Holding("optimizer", tensor)

    def found(self) -> Found:
        parameter = self._parameters[0]
        return Found(
            parameter=dtype_name(parameter.dtype),
            compute=dtype_name(self._output_dtype) if self._output_dtype else None,
            gradient=dtype_name(parameter.grad.dtype) if parameter.grad is not None else None,
            reduce=dtype_name(self._reduce_dtype) if self._reduce_dtype else None,
            master=dtype_name(parameter.dtype),
            optimizer_state=next((dtype_name(t.dtype) for t in optimizer_tensors(self._optimizer)), None),
            optimizer_class=optimizer_name(self._optimizer),
        )

    def resolved(self) -> dict[str, object]:
        return {
            "bucket_cap_mb": self._settings.bucket_cap_mb,
            "gradient_as_bucket_view": self._settings.gradient_as_bucket_view,
            "compile": self._settings.compile,
            "broadcast_buffers": False,
            "comm_hook": None if self._spec.numerics.reduce == self._spec.numerics.parameter else "bf16_compress_hook",
            "cast_on_access": self._spec.numerics.compute != self._spec.numerics.parameter,
        }


def build(context: Context) -> DdpEngine:
    """Build the engine from the spec's settings."""
    settings = decode(DdpSettings, context.spec.engine.settings, "engine.settings")
    return DdpEngine(context, settings)
