"""The sizes of the model that `dtbench fit` is asked about."""

from typing import Any

from dtbench.study.families import build_on_meta
from harness.contract.errors import SpecError
from harness.measure.shapes import Shape, shape_of

SIZES = ("layers", "hidden", "heads", "vocabulary")


def sizes(config: dict[str, Any], attention: str = "sdpa") -> tuple[Shape, str]:
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
    if found and (size := next((name for name in SIZES if getattr(found, name) < 1), None)):
        raise SpecError(f"MODEL: the config gives {getattr(found, size)} as the model's {size}, expected 1 or more")
    return (found, "formula") if found else (_generic(build_on_meta(config, "MODEL", attention)), "meta device")


def _generic(counted: dict[str, Any]) -> Shape:
    """Sizes from the counts and whatever widths the completed config names; a width it lacks is a usual one.

    What a block keeps for backward is traced on the model itself where that works.
    """
    config, traced = counted["config"], counted["traced"]

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
        saved=(traced["bytes_per_token"], traced["bytes_per_pair"]) if traced else None,
        counted=(counted["parameters"], counted["block_parameters"]),
    )
