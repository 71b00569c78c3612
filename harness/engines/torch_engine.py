"""What DDP and FSDP2 share: torch's AdamW steps on the model's own parameters, which are the masters."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from harness.contract.errors import SpecError
from harness.contract.measured import Found
from harness.contract.spec import Optimizer
from harness.engines.base import Context, Holding, dtype_name, require
from harness.engines.model import build_meta_model, count_parameters

_INPUTS = {
    "all_reduce": (0, "tensor"),
    "reduce_scatter_tensor": (1, "input"),
    # The name in torch 2.13.
    "reduce_scatter_single": (1, "input"),
}
"""Reduction -> position and keyword of the tensor that it is given."""


class TorchEngine(ABC):
    """A model wrapped by `wrap`, which each subclass implements."""

    def __init__(self, context: Context, **allowed: tuple[str, ...]) -> None:
        """Build model and optimizer. `allowed` are further numerics by role; raises SpecError for any other."""
        spec, held = context.spec, context.spec.numerics.parameter
        require(
            spec,
            master=(held,),
            optimizer_state=(held,),
            # FSDP2 casts a reduced gradient to the parameter's dtype before it adds it to the shard's.
            accumulate=(held,),
            compute=("float32", "bfloat16") if held == "float32" else ("bfloat16",),
            **allowed,
        )
        self._spec, self._casts = spec, spec.numerics.compute != held
        self._output_dtype: torch.dtype | None = None
        self._reduce_dtype: torch.dtype | None = None
        self.model = build_meta_model(context)
        self.parameters = count_parameters(self.model)
        self._wrapped = self.wrap(context)
        self._parameters = [p for p in self._wrapped.parameters() if p.requires_grad]
        self._optimizer = torch_adamw(spec.optimizer, self._parameters)

    @abstractmethod
    def wrap(self, context: Context) -> nn.Module:
        """Give the meta model its weights and wrap it; returns the module to call."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output = self._wrapped(input_ids=tokens, labels=tokens)
        self._output_dtype = output.logits.dtype
        return output.loss  # type: ignore[no-any-return]

    def backward(self, loss: torch.Tensor, *, last: bool, hold: bool = False) -> None:
        with reduced_bytes() if hold else nullcontext() as reduced:
            (loss / self._spec.data.gradient_accumulation).backward()
        if reduced:
            self._reduce_dtype = max(reduced, key=lambda kind: reduced[kind])

    def step(self) -> torch.Tensor:
        norm = _clip_gradients(self._parameters, self._spec.optimizer.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, local_part(p.data)) for name, p in self.model.named_parameters() if p.requires_grad)

    def holdings(self) -> Iterator[Holding]:
        for parameter in self._parameters:
            yield Holding("parameter", local_part(parameter.data))
            if parameter.grad is not None:
                yield Holding("gradient", local_part(parameter.grad))
        for tensor in optimizer_tensors(self._optimizer):
            yield Holding("optimizer", local_part(tensor))

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


@contextmanager
def reduced_bytes() -> Iterator[Counter[torch.dtype]]:
    """Bytes given to reductions while the context lasts, by dtype.

    Sees the calls made through Python (FSDP2, communication hooks), not those of DDP's C++ reducer.
    """
    seen: Counter[torch.dtype] = Counter()
    originals = {name: getattr(dist, name) for name in _INPUTS if hasattr(dist, name)}

    def watch(name: str, position: int, keyword: str) -> None:
        def stand_in(*arguments: Any, **keywords: Any) -> Any:
            tensor = keywords[keyword] if keyword in keywords else arguments[position]
            seen[tensor.dtype] += tensor.numel() * tensor.element_size()
            return originals[name](*arguments, **keywords)

        setattr(dist, name, stand_in)

    for name in originals:
        watch(name, *_INPUTS[name])
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor; the whole of it where nothing is sharded."""
    # Look for the method, not for the class: importing the class would make DDP import all of DTensor.
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def torch_adamw(spec: Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """torch's AdamW in the fused or the foreach implementation. Raises SpecError for another engine's kernels."""
    kinds = {"torch-fused": {"fused": True}, "torch-foreach": {"foreach": True}}
    if spec.implementation not in kinds:
        raise SpecError(
            f"optimizer.implementation: found {spec.implementation!r}, expected {' or '.join(kinds)} outside DeepSpeed"
        )
    return torch.optim.AdamW(
        parameters,
        lr=spec.learning_rate,
        betas=(spec.betas[0], spec.betas[1]),
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
        **kinds[spec.implementation],  # type: ignore[arg-type]
    )


def _clip_gradients(parameters: list[nn.Parameter], clip_norm: float) -> torch.Tensor:
    """Clip to the global norm in place (0: only measure it); returns the norm before, without synchronizing."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    # The norm of shards is reduced here, once: `clip_grad_norm_` would leave it partial and reduce it at each use.
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()
    if clip_norm > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm, foreach=True)
    return norm


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every state tensor that is as large as a parameter's part: both moments, not the step counters."""
    return [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim() > 0]


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """Class and kernel, for example `torch.optim.adamw.AdamW (fused)`."""
    kernel = next((k for k in ("fused", "foreach") if optimizer.defaults.get(k)), None)
    name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    return f"{name} ({kernel})" if kernel else name
