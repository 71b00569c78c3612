"""What a model's family can run with: its attention, and whether engines can build it; asked before anything starts."""

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from harness.contract.errors import SpecError
from harness.contract.spec import Model
from harness.measure.shapes import Shape, shape_of

BILLION = 10**9
NO_SDPA = {
    "big_bird", "bigbird_pegasus", "bloom", "cpmant", "deepseek_v4", "falcon_mamba", "flint", "gemma2", "git",
    "got_ocr2", "gpt_neo", "gpt_neox_japanese", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4",
    "inkling2_loop_text", "inkling2_text", "mamba", "mamba2", "megatron-bert", "mimo_v2_flash", "mpt", "mvp",
    "openai-gpt", "prophetnet", "reformer", "rembert", "roformer", "rwkv", "trocr", "vaultgemma", "xglm", "xlm",
    "xlnet", "xlstm",
}  # fmt: skip
"""Model types whose causal LM says `_supports_sdpa = False` in transformers 5.24.0; tests/engines/test_imports.py reads
all causal LMs again. Tried at toy size: gemma2, bloom, gpt_oss, mamba2 fail when built with `sdpa` and step with
`eager`."""
BUILD_TIMEOUT_S = 180.0


def choose_attention(model: Model) -> Model:
    """The model with `auto` replaced: `sdpa`, or `eager` for a family that has no SDPA."""
    if model.attention != "auto":  # type: ignore[comparison-overlap]  # a study's word, not a spec's
        return model
    return structs.replace(model, attention="eager" if model.config["model_type"] in NO_SDPA else "sdpa")


def check_models(models: Iterable[Model]) -> None:
    """Refuse a model that no engine can run with its attention, and two models of one name. Raises SpecError."""
    configs: dict[str, dict[str, Any]] = {}
    for model in models:
        kind = model.config["model_type"]
        if model.attention == "sdpa" and kind in NO_SDPA:
            raise SpecError(
                f"model.attention: found 'sdpa', which transformers does not have for model_type {kind!r}; "
                "give `attention: eager`, or leave the key out (`auto`)"
            )
        if configs.setdefault(model.name, model.config) != model.config:
            raise SpecError(f"model.name: two configs are called {model.name!r}; give one of them another `name`")


def check_families(models: Iterable[Model]) -> None:
    """Refuse a model that engines cannot build: it is built on the meta device, without weights, in 5 to 10 seconds.

    Families that are counted by formula pass at once, because the engine tests train them. Raises SpecError.
    """
    asked = {(id(model.config), model.attention): model for model in models}
    for model in asked.values():
        if model.attention != "flash_attention_2" and counted_shape(model.config) is not None:
            continue
        allowed = build_on_meta(model.config, "model")["attention"]
        if model.attention not in allowed:
            raise SpecError(
                f"model.attention: found {model.attention!r}, which transformers does not have for model_type "
                f"{model.config['model_type']!r}; it has {' and '.join(allowed)}: write one of them, or `auto`"
            )


def counted_shape(config: dict[str, Any]) -> Shape | None:
    """Sizes by formula; None for a family without one and for an incomplete config."""
    try:
        return shape_of(config)
    except (KeyError, TypeError, ValueError, StopIteration, ZeroDivisionError):
        return None


def build_on_meta(config: dict[str, Any], key: str, trace: str | None = None) -> dict[str, Any]:
    """What `harness.engines.count` says of a config, asked in a process of its own because it imports torch.

    `trace`: the attention with which it also traces what blocks keep for backward, which takes longer. Raises
    SpecError naming the key when the model cannot be built.
    """
    kind = config["model_type"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.engines.count", *([trace] if trace else [])],
            input=json.dumps(config),
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise SpecError(f"{key}: building {kind!r} on the meta device took over {BUILD_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SpecError(f"{key}: no engine can train model_type {kind!r}, because it cannot be built: {last}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def say_parameters(count: int) -> str:
    """`8.19B`, or `2.00M` below a billion."""
    return f"{count / 1e9:.2f}B" if count >= BILLION else f"{count / 1e6:.2f}M"
