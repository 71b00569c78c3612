"""The model: any Hugging Face causal LM, built on the meta device from the config in the spec; then its first weights.

Every engine starts from the same weights, whatever it shards. A module's parameters are drawn whole on the device, by
Hugging Face's own rule, from a seed that depends on the module's name alone. They are rounded to the compute dtype, so
that masters and working copies agree bit by bit, and only then sharded. No rank ever needs more than one piece of the
whole model at once, and nothing is drawn on the CPU for a model that trains on a GPU. Pretrained weights are read the
same way, one piece at a time.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from harness.contract.errors import SpecError
from harness.contract.spec import Model, RunSpec
from harness.engines.base import Context, dtype
from harness.engines.checkpoint import Checkpoint
from harness.engines.imports import import_causal_lm
from harness.engines.kernels import checkpoint_blocks, use_liger


def build_meta_model(context: Context) -> nn.Module:
    """The spec's model on the meta device, in training mode. Raises SpecError for a model type without a causal LM."""
    model_spec = context.spec.model
    if model_spec.kernels == "liger":
        use_liger(model_spec)
    config_class, model_class = _classes(model_spec)
    config = config_class(**_settings(model_spec))
    for key in silenced_dropout(context.spec):
        setattr(config, key, 0.0)
    if model_spec.attention not in (allowed := supported_attention(model_class)):
        raise SpecError(
            f"model.attention: found {model_spec.attention!r}, model_type {model_spec.config['model_type']!r} has "
            f"{' and '.join(allowed)}"
        )
    config._attn_implementation = model_spec.attention
    config.use_cache = False
    config.dtype = dtype(context.spec.numerics.parameter)
    with torch.device("meta"):
        model: nn.Module = model_class(config)
    # Cast parameters only. Rotary frequencies are float32 buffers, and rounding them would shift every position.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(config.dtype)
    model.train()
    if model_spec.activation_checkpointing:
        checkpoint_blocks(model, model_spec.activation_checkpointing)
    return model


def supported_attention(model_class: Any) -> list[str]:
    """Attention implementations that the family has, by its class attributes."""
    flags = {"sdpa": "_supports_sdpa", "flash_attention_2": "_supports_flash_attn"}
    return ["eager", *(name for name, flag in flags.items() if getattr(model_class, flag, False))]


def silenced_dropout(spec: RunSpec) -> dict[str, float]:
    """Probabilities of dropout in the model's config, given or default, that this run sets to 0.

    Each engine draws other dropout masks, so equal numerics would train differently. The arm `defaults` keeps dropout.
    """
    if spec.identity.arm == "defaults":
        return {}
    config = _classes(spec.model)[0](**_settings(spec.model)).to_dict()
    return {key: value for key, value in config.items() if re.search("dropout|pdrop|layerdrop", key)
            and isinstance(value, float) and value > 0}  # fmt: skip


def _classes(model: Model) -> tuple[Any, Any]:
    """Config and model class. Raises SpecError for a model type without a causal LM."""
    model_type = model.config["model_type"]
    classes = import_causal_lm(model_type)
    if classes is None:
        raise SpecError(f"model.config.model_type: found {model_type!r}, for which transformers has no causal LM")
    return classes


def _settings(model: Model) -> dict[str, Any]:
    return {key: value for key, value in model.config.items() if key != "model_type"}


def count_parameters(model: nn.Module) -> int:
    """Parameters of the whole model, tied ones counted once; call it before anything is sharded."""
    return sum(p.numel() for p in model.parameters())


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks, first to last: the unit of sharding and of compilation."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    # Any base class of the module counts, because FSDP2 puts a class of its own in front.
    blocks = [m for m in model.modules() if names & {cls.__name__ for cls in type(m).__mro__}]
    if not blocks:
        raise SpecError(f"model: {type(model).__name__} does not say which of its modules are its decoder blocks")
    return blocks


def expert_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Blocks that send each token to some of their `experts`, by name: router, experts, shared experts."""
    return {name: module for name, module in model.named_modules() if "experts" in module._modules}


def named_stages(model: nn.Module) -> dict[str, nn.Module]:
    """Embedding, decoder blocks and the modules after them, by name, in the order of the forward pass."""
    blocks = {id(block) for block in decoder_blocks(model)}
    heads = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[operator]
    wanted = blocks | {id(module) for module in heads if module is not None}
    return {name: module for name, module in model.named_modules() if id(module) in wanted}


def compile_parts(model: nn.Module, blocks: list[nn.Module]) -> None:
    """torch.compile each decoder block and the loss, in place; before an engine wraps them.

    Blocks one by one, because engines hook in between them. The loss because, run operator by operator, it keeps
    the logits as float32 three times over: at 151,936 tokens in the vocabulary that is 3.7 GB per sequence of 2,048.
    """
    for block in blocks:
        block.compile()
    model.loss_function = torch.compile(model.loss_function)


class Weights:
    """Gives a meta model its first weights, module by module, in any order."""

    def __init__(self, context: Context, model: nn.Module) -> None:
        self._model = model
        self._device = context.device
        self._seed = context.spec.model.seed
        self._compute = dtype(context.spec.numerics.compute)
        self._names = {id(module): name for name, module in model.named_modules()}
        self._real: dict[int, nn.Parameter] = {}
        source = context.spec.model.pretrained
        self._checkpoint = Checkpoint(source, model, context.loading) if source is not None else None

    def materialize(self, root: nn.Module) -> None:
        """Replace every meta parameter and buffer below `root` by a real one on the device."""
        for _ in self.stream(root):
            pass

    def stream(self, root: nn.Module) -> Iterator[nn.Parameter]:
        """Like `materialize`, handing over each new parameter before the next module is drawn."""
        for module in root.modules():
            fresh = self._draw(module)
            for name, meta in list(module._parameters.items()):
                if meta is None or not meta.is_meta:
                    continue
                # Tied parameters are one object in several modules: drawn at the first, shared by the others.
                if id(meta) not in self._real:
                    value = fresh[name].to(self._compute).to(meta.dtype)
                    self._real[id(meta)] = nn.Parameter(value, requires_grad=meta.requires_grad)
                    module._parameters[name] = self._real[id(meta)]
                    yield self._real[id(meta)]
                else:
                    module._parameters[name] = self._real[id(meta)]

    def _draw(self, module: nn.Module) -> dict[str, torch.Tensor]:
        meta = {n: p for n, p in module._parameters.items() if p is not None and p.is_meta and id(p) not in self._real}
        buffers = {n: b for n, b in module._buffers.items() if b is not None and b.is_meta}
        if not meta and not buffers:
            return {}
        name = self._names[id(module)]
        for n, b in buffers.items():
            module._buffers[n] = torch.empty_like(b, device=self._device)
        fresh = {
            n: nn.Parameter(torch.empty(p.shape, dtype=torch.float32, device=self._device)) for n, p in meta.items()
        }
        module._parameters.update(fresh)
        torch.manual_seed(_seed_of(self._seed, name))
        with torch.no_grad():
            self._model._init_weights(module)  # type: ignore[operator]
        module._parameters.update(meta)
        if self._checkpoint is not None:
            prefix = f"{name}." if name else ""
            for n in buffers:
                if self._checkpoint.has(prefix + n):
                    module._buffers[n] = self._checkpoint.read(prefix + n).to(self._device, buffers[n].dtype)
            return {n: self._checkpoint.read(prefix + n).to(self._device) for n in meta}
        return {n: p.data for n, p in fresh.items()}


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1
