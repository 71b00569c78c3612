"""The model: any Hugging Face causal LM, built on the meta device and given its weights piece by piece.

Every engine starts from the same weights, whatever it shards: a module's parameters are drawn whole
on the device by Hugging Face's own rule from a seed that depends on the module's name alone, rounded
to the compute dtype (so that masters and working copies agree bit by bit), and only then cut up.
No rank ever needs more than one piece of the whole model at once, and nothing is drawn on the CPU
for a model that trains on a GPU.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import nn

from harness.contract.errors import SpecError
from harness.engines.base import Context
from harness.engines.numerics import dtype


def build_meta_model(context: Context) -> nn.Module:
    """The spec's model on the meta device, in training mode. Raises SpecError for a model type without a causal LM."""
    # The mappings import one model family; `AutoModelForCausalLM` drags in the whole auto factory.
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    model_spec = context.spec.model
    settings = dict(model_spec.config)
    model_type = settings.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        raise SpecError(f"model.config.model_type: found {model_type!r}, which this transformers release does not know")
    config = CONFIG_MAPPING[model_type](**settings)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SpecError(f"model.config.model_type: found {model_type!r}, which has no causal language model")
    config._attn_implementation = model_spec.attention
    config.use_cache = False
    config.dtype = dtype(context.spec.numerics.parameter)
    with torch.device("meta"):
        model: nn.Module = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    model.to(config.dtype)
    model.train()
    if model_spec.activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
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


class Weights:
    """Gives a meta model its first weights, module by module, in any order."""

    def __init__(self, context: Context, model: nn.Module) -> None:
        self._model = model
        self._device = context.device
        self._seed = context.spec.model.seed
        self._compute = dtype(context.spec.numerics.compute)
        self._names = {id(module): name for name, module in model.named_modules()}
        self._real: dict[int, nn.Parameter] = {}
        self._pretrained = _pretrained_state(context, model)

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
        if self._pretrained is not None and meta:
            return {n: self._pretrained[f"{name}.{n}" if name else n].to(self._device) for n in meta}
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
        return {n: p.data for n, p in fresh.items()}


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1


def _pretrained_state(context: Context, model: nn.Module) -> dict[str, torch.Tensor] | None:
    source = context.spec.model.pretrained
    if source is None:
        return None
    # Memory-mapped safetensors: pages are read as pieces are copied, and shared between the ranks of a host.
    loaded = type(model).from_pretrained(source, dtype=torch.float32)  # type: ignore[attr-defined]
    state: dict[str, torch.Tensor] = loaded.state_dict()
    return state
