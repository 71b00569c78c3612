"""DistributedDataParallel: nothing is sharded; the reference that the others are compared with."""

import warnings
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from harness.contract.codec import decode
from harness.contract.engines.ddp import DdpSettings
from harness.engines.base import Context, dtype
from harness.engines.model import Weights, compile_parts, decoder_blocks
from harness.engines.torch_engine import TorchEngine


class _Cast(nn.Module):
    """Parametrization that returns a parameter in the compute dtype and leaves the master as it is."""

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


class DdpEngine(TorchEngine):
    """One full copy of everything on every rank."""

    def __init__(self, context: Context) -> None:
        self._settings = decode(DdpSettings, context.spec.engine.settings, "engine.settings")
        numerics = context.spec.numerics
        self._compresses = numerics.reduce != numerics.parameter
        super().__init__(context, reduce=(numerics.parameter, "bfloat16"))

    def wrap(self, context: Context) -> nn.Module:
        Weights(context, self.model).materialize(self.model)
        if self._casts:
            _cast_on_access(self.model, dtype(self._spec.numerics.compute))
        if self._settings.compile:
            compile_parts(self.model, decoder_blocks(self.model))
        with warnings.catch_warnings():
            # torch 2.13 has `forward_sync_buffers` for this, but 2.11 does not.
            warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
            self._ddp = DistributedDataParallel(
                self.model,
                device_ids=[context.device] if context.device.type == "cuda" else None,
                bucket_cap_mb=self._settings.bucket_cap_mb,
                gradient_as_bucket_view=self._settings.gradient_as_bucket_view,
                broadcast_buffers=False,
                # Every rank has drawn the same weights.
                init_sync=False,
            )
        if self._compresses:
            self._ddp.register_comm_hook(None, bf16_compress_hook)
        return self._ddp

    def backward(self, loss: torch.Tensor, *, last: bool, hold: bool = False) -> None:
        with nullcontext() if last else self._ddp.no_sync():
            super().backward(loss, last=last, hold=hold)
        if hold and last and not self._compresses and (gradient := self._parameters[0].grad) is not None:
            # Without a hook the reducer itself reduces the gradients, as they are.
            self._reduce_dtype = gradient.dtype

    def resolved(self) -> dict[str, object]:
        return {
            "bucket_cap_mb": self._settings.bucket_cap_mb,
            "gradient_as_bucket_view": self._settings.gradient_as_bucket_view,
            "compile": self._settings.compile,
            "broadcast_buffers": False,
            "comm_hook": "bf16_compress_hook" if self._compresses else None,
            "cast_on_access": self._casts,
        }


build = DdpEngine
