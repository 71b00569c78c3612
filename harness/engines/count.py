"""Parameters and activations of any causal LM that transformers has, counted without weights and without a GPU.

A program: it reads a Hugging Face config as JSON from standard input, and prints one JSON object.
With a kind of attention as its argument it also traces what the blocks keep for backward. The client starts it
as a process of its own, because importing torch and the model's family takes seconds.
"""

import json
import re
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from harness.contract.errors import SpecError
from harness.engines.imports import import_causal_lm
from harness.engines.model import count_parameters, decoder_blocks, supported_attention

TRACE_LIMIT_S = 40
LENGTHS = (128, 256)
"""Tokens of the two traced sequences; comparing them separates linear from quadratic growth."""

Sizes = tuple[int, ...]


def _experts_flops(rows: Sizes, experts: Sizes, *_: object, **__: object) -> int:
    """(tokens of all experts, width) times (experts, width, columns): each token meets its own expert alone."""
    return 2 * rows[0] * rows[1] * experts[2]


def _attention_flops(queries: Sizes, keys: Sizes, values: Sizes, *_: object, **__: object) -> int:
    return int(sdpa_flop_count(queries, keys, values))


FLOPS = {
    torch.ops.aten._grouped_mm: _experts_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
}
"""Operators whose FLOPs torch's counter does not know."""


def count(config: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the model, its blocks and its input embedding. Raises SpecError for a type without a causal LM."""
    settings, model_class = _classes(config)
    with torch.device("meta"):
        model: nn.Module = model_class(settings)
    model.tie_weights()  # type: ignore[operator]
    blocks = decoder_blocks(model)
    return {
        "parameters": count_parameters(model),
        "layers": len(blocks),
        "block_parameters": sum(map(count_parameters, blocks)) // len(blocks),
        "embedding_parameters": model.get_input_embeddings().weight.numel(),  # type: ignore[operator]
        "attention": supported_attention(model_class),
        "config": settings.to_dict(),
    }


def trace(config: dict[str, Any], attention: str = "sdpa") -> dict[str, float]:
    """What forward keeps for backward, in bfloat16, and its FLOPs; by fake tensors, which have no data.

    Bytes of the average block, per token and per pair of tokens; FLOPs of the whole forward pass per token, with
    attention over 128 tokens in full. The trace uses CPU kernels. Unlike GPU kernels they repeat keys and values of
    grouped queries and keep the mask, so under SDPA nothing per pair is counted. A model that needs real data fails
    here with its own exception.
    """
    settings, model_class = _classes(config)
    settings._attn_implementation, settings.use_cache = attention, False
    for key, value in settings.to_dict().items():
        if re.search("dropout|pdrop|layerdrop", key) and isinstance(value, float):
            setattr(settings, key, 0.0)  # as the matched arm has it
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode():
            model: nn.Module = model_class(settings)
            model.train()
            (short, flops), (long, _) = (_forward(model, length) for length in LENGTHS)
    finally:
        torch.set_default_dtype(usual)
    few, many = LENGTHS
    pair = max(0.0, (long / many - short / few) / (many - few))
    per_pair = pair if attention == "eager" else 0.0
    return {
        "bytes_per_token": short / few - pair * few,
        "bytes_per_pair": per_pair,
        "forward_flops_per_token": flops / few,
    }


def _forward(model: nn.Module, length: int) -> tuple[float, float]:
    """Bytes that the average block keeps of one sequence, and FLOPs of the pass."""
    blocks = decoder_blocks(model)
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}
    inside = 0

    def enter(*_: object) -> None:
        nonlocal inside
        inside += 1

    def leave(*_: object) -> None:
        nonlocal inside
        inside -= 1

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata
        if inside and storage not in own:
            kept[storage] = tensor  # holding it keeps its address from another
        return tensor

    hooks = [block.register_forward_pre_hook(enter) for block in blocks]
    hooks += [block.register_forward_hook(leave) for block in blocks]
    tokens = torch.zeros(1, length, dtype=torch.long)
    with (
        saved_tensors_hooks(keep, lambda tensor: tensor),
        FlopCounterMode(display=False, custom_mapping=FLOPS) as counter,
    ):
        model(input_ids=tokens)
    for hook in hooks:
        hook.remove()
    size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    return size / len(blocks), float(counter.get_total_flops())


def _classes(config: dict[str, Any]) -> tuple[Any, Any]:
    kind = config["model_type"]
    classes = import_causal_lm(kind)
    if classes is None:
        raise SpecError(f"model_type: found {kind!r}, for which transformers has no causal LM")
    config_class, model_class = classes
    return config_class(**{key: value for key, value in config.items() if key != "model_type"}), model_class


def main() -> int:
    """Print the count, or the reason why there is none to standard error; returns the exit status."""
    try:
        config = json.load(sys.stdin)
        found = count(config)
    except (SpecError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError, ImportError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if len(sys.argv) > 1:
        found["traced"] = _traced(config, sys.argv[1])
    print(json.dumps(found, default=str))
    return 0


def _traced(config: dict[str, Any], attention: str) -> dict[str, float] | None:
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(TRACE_LIMIT_S)
    try:
        return trace(config, attention)
    except Exception as error:  # a family may need data, a kernel or more time; its parameters are known all the same
        print(f"not traced: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    finally:
        signal.alarm(0)


def _late(*_: object) -> None:
    raise TimeoutError(f"took over {TRACE_LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
