"""The model: any Hugging Face causal LM, built on the meta device from the config in the spec."""

import torch
from torch import nn

from harness.contract.errors import SpecError
from harness.engines.base import Context
from harness.engines.imports import import_causal_lm
from harness.engines.numerics import dtype


def build_meta_model(context: Context) -> nn.Module:
    """The spec's model on the meta device, in training mode. Raises SpecError for a model type without a causal LM."""
    model_spec = context.spec.model
    settings = dict(model_spec.config)
    model_type = settings.pop("model_type")
    classes = import_causal_lm(model_type)
    if classes is None:
        raise SpecError(f"model.config.model_type: found {model_type!r}, for which transformers has no causal LM")
    config_class, model_class = classes
    config = config_class(**settings)
    config._attn_implementation = model_spec.attention
    config.use_cache = False
    config.dtype = dtype(context.spec.numerics.parameter)
    with torch.device("meta"):
        model: nn.Module = model_class(config)
    # Parameters alone: rotary frequencies are float32 buffers, and rounding them would bend every position.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(config.dtype)
    model.train()
    if model_spec.activation_checkpointing:
        # Renamed in transformers 5.18 or later; the old name warns, the new one is not there before.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return model


def count_parameters(model: nn.Module) -> int:
    """Parameters of the whole model, tied ones counted once; call it before anything is sharded."""
    return sum(p.numel() for p in model.parameters())


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks, first to last: the unit of sharding and of compilation."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    blocks = [m for m in model.modules() if type(m).__name__ in names]
    if not blocks:
        raise SpecError(f"model: {type(model).__name__} does not say which of its modules are its decoder blocks")
    return blocks


def compile_parts(model: nn.Module, blocks: list[nn.Module]) -> None:
    """torch.compile each decoder block and the loss, in place; before an engine wraps them.

    Blocks one by one, because engines hook in between them. The loss because, run operator by operator, it keeps
    the logits as float32 three times over: at 151,936 tokens in the vocabulary that is 3.7 GB per sequence of 2,048.
    """
    for block in blocks:
        block.compile()
    model.loss_function = torch.compile(model.loss_function)
