"""Parameters of any causal LM that transformers has, counted on the meta device: no weights and no GPU.

A program: it reads a Hugging Face config as JSON from standard input and prints one JSON object. The client starts it
as a process of its own, because importing torch and the model's family takes seconds.
"""

import json
import sys
from typing import Any

import torch
from torch import nn

from harness.contract.errors import SpecError
from harness.engines.imports import import_causal_lm
from harness.engines.model import count_parameters, decoder_blocks, supported_attention


def count(config: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the model, its blocks and its input embedding. Raises SpecError for a type without a causal LM."""
    kind = config["model_type"]
    classes = import_causal_lm(kind)
    if classes is None:
        raise SpecError(f"model_type: found {kind!r}, for which transformers has no causal LM")
    config_class, model_class = classes
    settings = config_class(**{key: value for key, value in config.items() if key != "model_type"})
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


def main() -> int:
    """Print the count, or the reason why there is none to standard error; returns the exit status."""
    try:
        found = count(json.load(sys.stdin))
    except (SpecError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError, ImportError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
