"""FSDP2: torch.distributed.fsdp.fully_shard on groups of decoder blocks and on the root."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from harness.contract.codec import decode
from harness.contract.engines.fsdp2 import FsdpSettings
from harness.contract.measured import Found
from harness.engines.base import Context, Holding
from harness.engines.model import build_meta_model, compile_parts, count_parameters, decoder_blocks
from harness.engines.numerics import dtype, dtype_name, require
from harness.engines.optimizer import clip_gradients, optimizer_name, optimizer_tensors, torch_adamw
from harness.engines.weights import Weights
from harness.measure.collectives import reduced_bytes


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class FsdpEngine:
    """Parameters, gradients and optimizer state sharded along dimension 0 of each parameter."""

    def __init__(self, context: Context, settings: FsdpSettings) -> None:
        spec, numerics = context.spec, context.spec.numerics
        require(
            spec,
            master=(numerics.parameter,),
            optimizer_state=(numerics.parameter,),
            # A reduced gradient is cast to the parameter's dtype before it is added to the shard's.
            accumulate=(numerics.parameter,),
            compute=("float32", "bfloat16") if numerics.parameter == "float32" else ("bfloat16",),
        )
        self._spec, self._settings, self._world_size = spec, settings, context.world_size
        self._output_dtype: torch.dtype | None = None
        self._reduce_dtype: torch.dtype | None = None
        self.model = build_meta_model(context)
        self.parameters = count_parameters(self.model)
        self._shard(context)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = torch_adamw(spec.optimizer, self._parameters)

    def _shard(self, context: Context) -> None:
        numerics, settings = self._spec.numerics, self._settings
        mesh = init_device_mesh(context.device.type, (context.world_size,))
        # Both dtypes are always explicit: what None means for reduce_dtype has changed between releases.
        casts = numerics.compute != numerics.parameter
        policy = MixedPrecisionPolicy(
            param_dtype=dtype(numerics.compute) if casts else None, reduce_dtype=dtype(numerics.reduce)
        )
        # Pinning serves copies to a GPU; without one there is nothing to pin for.
        self._pin = settings.pin_memory and context.device.type == "cuda"
        offload = CPUOffloadPolicy(pin_memory=self._pin) if settings.offload else OffloadPolicy()
        weights = Weights(context, self.model)
        blocks = decoder_blocks(self.model)
        if settings.compile:
            compile_parts(self.model, blocks)
        groups = [blocks[i : i + settings.blocks_per_group] for i in range(0, len(blocks), settings.blocks_per_group)]
        for group in groups:
            for block in group:
                weights.materialize(block)
            fully_shard(
                group if len(group) > 1 else group[0],
                mesh=mesh,
                mp_policy=policy,
                offload_policy=offload,
                reshard_after_forward=settings.reshard_after_forward,
            )
        weights.materialize(self.model)
        # The root's own unit (embedding, norm, head) is the first of backward: freeing it between would
        # only gather it again at once.
        fully_shard(self.model, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=False)
        _prefetch([group[0] for group in groups], settings.prefetch_depth)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output = self.model(input_ids=tokens, labels=tokens)
        self._output_dtype = output.logits.dtype
        return output.loss  # type: ignore[no-any-return]

    def backward(self, loss: torch.Tensor, *, last: bool, hold: bool = False) -> None:
        # Every micro-step reduces: what stays between them is a shard, as with ZeRO-2 and ZeRO-3.
        with reduced_bytes() if hold else nullcontext() as reduced:
            (loss / self._spec.data.gradient_accumulation).backward()
        if reduced:
            self._reduce_dtype = max(reduced, key=lambda kind: reduced[kind])

    def step(self) -> torch.Tensor:
        norm = clip_gradients(self._parameters, self._spec.optimizer.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def holdings(self) -> Iterator[Holding]:
        for parameter in self._parameters:
            yield Holding("parameter", _local(parameter.data))
            if parameter.grad is not None:
                yield Holding("gradient", _local(parameter.grad))
        for tensor in optimizer_tensors(self._optimizer):
            yield Holding("optimizer", _local(tensor))

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
        numerics, settings = self._spec.numerics, self._settings
        return {
            "units": f"{settings.blocks_per_group} block(s) per group, then the root",
            "reshard_after_forward": settings.reshard_after_forward,
            "root_reshard_after_forward": False,
            "mp_policy": {
                "param_dtype": numerics.compute if numerics.compute != numerics.parameter else None,
                "reduce_dtype": numerics.reduce,
                "output_dtype": None,
                "cast_forward_inputs": True,
            },
            "offload_policy": {"cpu": settings.offload, "pin_memory": settings.offload and self._pin},
            "prefetch_depth": settings.prefetch_depth,
            "compile": settings.compile,
        }


def _prefetch(units: list[torch.nn.Module], depth: int) -> None:
    if depth == 0:
        return
    for index, unit in enumerate(units):
        ahead, behind = units[index + 1 : index + 1 + depth], units[max(0, index - depth) : index]
        if ahead:
            unit.set_modules_to_forward_prefetch(ahead)  # type: ignore[operator]
        if behind:
            unit.set_modules_to_backward_prefetch(behind[::-1])  # type: ignore[operator]


def build(context: Context) -> FsdpEngine:
    """Build the engine from the spec's settings."""
    settings = decode(FsdpSettings, context.spec.engine.settings, "engine.settings")
    return FsdpEngine(context, settings)
