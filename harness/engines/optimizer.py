"""AdamW with the implementation named: the same mathematics, another kernel."""

from collections.abc import Iterable

import torch

from harness.contract.errors import SpecError
from harness.contract.spec import Optimizer


def torch_adamw(spec: Optimizer, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.AdamW:
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


def clip_gradients(parameters: list[torch.nn.Parameter], clip_norm: float) -> torch.Tensor:
    """Clip to the global norm in place (0: only measure it); returns the norm before, without synchronizing."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    # Of shards: reduced here, once; `clip_grad_norm_` would leave it partial and reduce it again for each use.
    # Asked by its method: importing the class would cost an engine without shards the import of all of DTensor.
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
