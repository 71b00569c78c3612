"""What the model has under every engine alike: fused Triton kernels, and activation checkpointing."""

import inspect
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from harness.contract.errors import SpecError
from harness.contract.spec import Model

# The fused loss would read the head's weight outside its module, where ZeRO-3 and FSDP2 have not gathered it.
_WANTED = {"cross_entropy": True, "fused_linear_cross_entropy": False}

_aten = torch.ops.aten
KEPT = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)
"""What selective checkpointing keeps: the results that take longest to make again."""


def use_liger(model: Model) -> None:
    """Put Liger's kernels in place of the family's own, for this process, before the model is built.

    Raises SpecError where the package is missing or has none for this family.
    """
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as families
    except ImportError as error:
        raise SpecError(
            f"model.kernels: 'liger' needs the package liger-kernel, which did not import: {error}"
        ) from None
    model_type = model.config["model_type"]
    if model_type not in families:
        raise SpecError(
            f"model.kernels: Liger has no kernels for model_type {model_type!r}; expected one of "
            f"{', '.join(sorted(families))}, or kernels: torch"
        )
    apply = families[model_type]
    known = inspect.signature(apply).parameters
    apply(**{name: value for name, value in _WANTED.items() if name in known})


def liger_modules(model: nn.Module) -> dict[str, int]:
    """How many modules of each of Liger's classes a model really has."""
    names = (
        cls.__name__ for module in model.modules() for cls in type(module).__mro__ if cls.__module__.startswith("liger")
    )
    return dict(sorted(Counter(names).items()))


def checkpoint_blocks(model: nn.Module, how: bool | str) -> None:
    """Recompute each decoder block in backward; `selective`: all of it but matrix products and attention."""
    arguments: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        arguments["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    # transformers 5.18 or later has another name for it and warns about the old one; earlier releases know only the old
    # one.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(arguments)


def _policy(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
