"""The model of `dtbench fit`: its config from a name, a file, a folder or the Hub, and its sizes."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from dtbench.study.families import build_on_meta
from dtbench.study.files import is_file, is_folder
from dtbench.study.models import load_model
from harness.contract.codec import LONGEST_NAME
from harness.contract.errors import SpecError
from harness.measure.shapes import Shape, shape_of

HUB = "https://huggingface.co"
HUB_TIMEOUT_S = 5.0


def find_config(model: str, root: Path) -> dict[str, Any]:
    """`name` and `config` of a model: a name in config/models, a config.json or its folder, or a Hub id.

    Raises SpecError saying what was tried and how to give the file.
    """
    if is_file(Path(model)) or is_folder(Path(model)):
        return load_model(None, model, root, Path(), "MODEL")
    if model.endswith(".json") or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return load_model(model, None, root, Path(), "MODEL")
    name = re.sub(r"[^a-z0-9._-]+", "-", model.rpartition("/")[2].lower())[:LONGEST_NAME]
    return {"name": name.strip("._-") or "model", "config": _from_hub(model)}


def _from_hub(model: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{HUB}/{model}/resolve/main/config.json", timeout=HUB_TIMEOUT_S) as answer:
            config = json.load(answer)
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise SpecError(
            f"MODEL: {model!r} is no file or folder here, and the Hub gave no config ({error}); give the model's "
            f"config.json: `hf download {model} config.json --local-dir FOLDER`, then `dtbench fit FOLDER`"
        ) from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise SpecError(f"MODEL: the Hub's config.json of {model!r} holds no model_type; give a file that does")
    return config


def sizes(config: dict[str, Any]) -> tuple[Shape, str]:
    """Sizes of a model, and how they were found: `formula`, or `meta device` for a family without one.

    Raises SpecError when the family is unknown to transformers too, or its config is incomplete.
    """
    try:
        found = shape_of(config)
    except (KeyError, TypeError, ValueError, StopIteration, ZeroDivisionError) as error:
        raise SpecError(
            f"MODEL: the config of model_type {config['model_type']!r} lacks or garbles {error}; "
            "give the complete config.json of the model"
        ) from None
    return (found, "formula") if found else (_generic(build_on_meta(config, "MODEL")), "meta device")


def _generic(counted: dict[str, Any]) -> Shape:
    """Sizes from the counts and whatever widths the completed config names; a width it lacks is a usual one."""
    config = counted["config"]

    def size(*keys: str, usual: int) -> int:
        given = (config.get(key) for key in keys)
        return next((value for value in given if type(value) is int and value > 0), usual)

    vocabulary = size("vocab_size", usual=1)
    hidden = size("hidden_size", "n_embd", "d_model", usual=max(1, counted["embedding_parameters"] // vocabulary))
    heads = size("num_attention_heads", "n_head", "n_heads", usual=max(1, hidden // 128))
    queries = heads * size("head_dim", usual=hidden // heads)
    return Shape(
        layers=counted["layers"],
        hidden=hidden,
        intermediate=size("intermediate_size", "ffn_dim", "n_inner", usual=4 * hidden),
        heads=heads,
        query_width=queries,
        key_width=queries // heads * size("num_key_value_heads", usual=heads),
        vocabulary=vocabulary,
        tied=bool(config.get("tie_word_embeddings", True)),
        attention_matrices=0,
        vectors=0,
        active_experts=size("num_experts_per_tok", usual=0),
        counted=(counted["parameters"], counted["block_parameters"]),
    )
