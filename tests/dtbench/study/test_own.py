"""A study brings its own model, from a Hugging Face config anywhere, and its own platforms."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from dtbench.study.matrix import Matrix, load_matrix

from harness.contract.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]
LLAMA = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2}
CPU = {"device": "cpu", "world_size": 3, "accelerator": "cpu", "interconnect": "loopback"}


def write(path: Path, config: Any = LLAMA) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))


@pytest.mark.parametrize("given", ["../my_Llama 3/config.json", "../my_Llama 3", "{absolute}"])
def test_a_config_beside_the_study_is_found(tmp_path: Path, given: str) -> None:
    write(tmp_path / "my_Llama 3/config.json")
    path = tmp_path / "studies/mine.yaml"
    write(
        path,
        yaml.safe_dump({"platforms": ["cpu-x2"], "model": {"config": given.format(absolute=tmp_path / "my_Llama 3")}}),
    )
    model = load_matrix(str(path), ROOT).runs[0].model
    assert (model.name, model.config) == ("my_llama-3", LLAMA)


def test_a_config_in_the_working_directory_is_found(
    study: Callable[[str], Matrix], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "elsewhere/small.json")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert study("platforms: [cpu-x2]\nmodel: {config: small.json}\n").runs[0].model.name == "small"


def test_a_hub_snapshot_takes_its_configs_name(study: Callable[[str], Matrix], tmp_path: Path) -> None:
    write(tmp_path / ("0a" * 20) / "config.json", LLAMA | {"_name_or_path": "meta-llama/Llama-3.1-8B"})
    assert study(f"platforms: [cpu-x2]\nmodel: {{config: {'0a' * 20}}}\n").runs[0].model.name == "llama-3.1-8b"


@pytest.mark.parametrize(("line", "name"), [("", "qwen2.5-3b"), ("model: {config: small.json}", "small")])
def test_the_study_knows_the_name_it_left_out(
    study: Callable[[str], Matrix], tmp_path: Path, line: str, name: str
) -> None:
    write(tmp_path / "small.json")
    assert study(f"platforms: [cpu-x2]\n{line}\n").study.model.name == name


def test_overrides_may_bring_a_config(study: Callable[[str], Matrix], tmp_path: Path) -> None:
    write(tmp_path / "small.json")
    write(tmp_path / "wide.json", LLAMA | {"hidden_size": 128})
    text = """
platforms: [cpu-x2]
configs: [ddp, {name: wide, base: ddp, override: {model: {config: wide.json}}}, zero-3]
model: {name: mine, config: small.json}
overrides: [{config: zero-3, set: {model: {name: tiny}}}]
"""
    found = {run.identity.config: (run.model.name, run.model.config["hidden_size"]) for run in study(text).runs}
    assert found == {"ddp": ("mine", 64), "wide": ("wide", 128), "zero-3": ("tiny", 128)}


def test_a_named_model_hashes_as_its_config_does(study: Callable[[str], Matrix]) -> None:
    named = study("platforms: [cpu-x2]\nmodel: {name: tiny}\n").runs
    own = study(f"platforms: [cpu-x2]\nmodel: {{config: {ROOT / 'config/models/tiny.json'}}}\n").runs
    assert [run.hash() for run in named] == [run.hash() for run in own]


BAD: dict[str, tuple[str, Any, str]] = {
    "missing": ("model: {config: gone}", None, r"yaml: model\.config: found no file .*gone.*expected a Hugging Face"),
    "no JSON": ("model: {config: c.json}", "{", r"model\.config: .*c\.json:1:2: not JSON.*expected a Hugging Face"),
    "a list": ("model: {config: c.json}", [1], r"model\.config: .*c\.json holds no model_type"),
    "no model_type": ("model: {config: c.json}", {"vocab_size": 3}, r"model\.config: .*holds no model_type"),
    "multimodal": (
        "model: {config: c.json}",
        {"model_type": "x", "text_config": {}},
        r"model\.config: .*no vocab_size",
    ),
    "not a path": ("model: {config: 3}", None, r"model\.config: found 3, expected"),
    "in an override": (
        "overrides: [{set: {model: {config: gone}}}]",
        None,
        r"overrides\[0\]\.set\.model\.config: found no",
    ),
    "a name unknown": (
        "model: {name: tinny}",
        None,
        r"did you mean 'tiny'\?; for a model of your own .*config: path/to",
    ),
    "two of one name": (
        "model: {config: c.json}\noverrides: [{config: ddp, set: {model: {name: c, config: d.json}}}]",
        LLAMA,
        r"model\.name: two configs are called 'c'",
    ),
    "no SDPA": (
        "model: {config: c.json, attention: sdpa}",
        LLAMA | {"model_type": "gemma2"},
        r"model\.attention: found 'sdpa', which transformers does not have for model_type 'gemma2'; give .*eager",
    ),
}


@pytest.mark.parametrize(("text", "config", "message"), BAD.values(), ids=BAD)
def test_a_model_that_cannot_run_is_refused(
    study: Callable[[str], Matrix], tmp_path: Path, text: str, config: Any, message: str
) -> None:
    if config is not None:
        write(tmp_path / "c.json", config)
    write(tmp_path / "d.json", LLAMA | {"hidden_size": 128})
    with pytest.raises(SpecError) as refused:
        study(f"platforms: [cpu-x2]\nconfigs: [ddp, zero-3]\n{text}\n")
    assert re.search(message, str(refused.value)), str(refused.value)


def test_a_family_without_sdpa_runs_eagerly(study: Callable[[str], Matrix], tmp_path: Path) -> None:
    write(tmp_path / "c.json", LLAMA | {"model_type": "gemma2"})
    assert study("platforms: [cpu-x2]\nmodel: {config: c.json, attention: eager}\n").runs


def test_a_study_gives_its_own_platform(study: Callable[[str], Matrix]) -> None:
    plain = {"platforms": ["cpu-x2", {"name": "mine", **CPU}], "configs": ["ddp"], "model": {"name": "tiny"}}
    schema = json.loads((ROOT / "workflow/schemas/study.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(plain)
    matrix = study(yaml.safe_dump(plain))
    assert matrix.study.platforms == ("cpu-x2", "mine")
    assert {run.platform.world_size for run in matrix.runs} == {2, 3}


def test_a_platform_file_beside_the_study_is_read(study: Callable[[str], Matrix], tmp_path: Path) -> None:
    write(tmp_path / "platforms.yaml", yaml.safe_dump({"mine": CPU}))
    matrix = study("platforms: [mine, cpu-x2]\nconfigs: [ddp]\nmodel: {name: tiny}\n")
    assert {run.platform.name: run.platform.world_size for run in matrix.runs} == {"mine": 3, "cpu-x2": 2}
    write(tmp_path / "platforms.yaml", yaml.safe_dump({"cpu-x2": CPU}))
    with pytest.raises(SpecError, match=r"platforms\.yaml: cpu-x2: is in config/platforms\.yaml already"):
        study("platforms: [cpu-x2]\nmodel: {name: tiny}\n")


@pytest.mark.parametrize(
    ("platforms", "message"),
    [
        ([CPU], r"platforms\[0\]\.name: missing"),
        ([{"name": "cpu-x2", **CPU}], r"platforms\[0\]\.name: 'cpu-x2' is in platforms\.yaml already"),
        ([{"name": "a", **CPU, "world_size": 0}], r"platforms\[0\]\.world_size: found 0"),
        ([{"name": "a", **CPU, "gpu": 1}], r"platforms\[0\]\.gpu: unknown key"),
        ([{"name": "a", **CPU}, {"name": "a", **CPU}], r"platforms: 'a' is listed 2 times"),
        (
            [{"name": "a", **CPU, "environment": {"HF_TOKEN": "x"}}],
            r"platforms\[0\]\.environment\.HF_TOKEN: looks like",
        ),
        ([3], r"platforms\[0\]: found 3"),
        (["mine"], r"platforms\[0\]: unknown platform 'mine'.*for one of your own give a mapping: \{name: mine"),
    ],
)
def test_a_bad_platform_in_a_study_is_refused(
    study: Callable[[str], Matrix], platforms: list[Any], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        study(yaml.safe_dump({"platforms": platforms, "configs": ["ddp"]}))
    assert re.search(message, str(refused.value)), str(refused.value)


def test_attention_is_chosen_by_family(study: Callable[[str], Matrix], tmp_path: Path) -> None:
    write(tmp_path / "c.json", LLAMA | {"model_type": "gemma2"})
    text = """
platforms: [cpu-x2]
configs: [ddp, {name: own, base: ddp, override: {model: {config: c.json}}}]
model: {name: tiny}
"""
    found = {run.identity.config: run.model.attention for run in study(text).runs}
    assert found == {"ddp": "sdpa", "own": "eager"}


@pytest.mark.parametrize("given", ["weights", "{absolute}"])
def test_pretrained_weights_bring_their_config(study: Callable[[str], Matrix], tmp_path: Path, given: str) -> None:
    write(tmp_path / "weights/config.json")
    where = given.format(absolute=tmp_path / "weights")
    model = study(f"platforms: [cpu-x2]\nmodel: {{weights: pretrained, pretrained: {where}}}\n").runs[0].model
    assert (model.name, model.config) == ("weights", LLAMA)
    assert model.pretrained == str(tmp_path / "weights"), "a run may start in another folder"


def test_weights_that_are_nowhere_are_refused(study: Callable[[str], Matrix]) -> None:
    with pytest.raises(SpecError, match=r"model\.pretrained: found no folder gone; expected one with \*\.safetensors"):
        study("platforms: [cpu-x2]\nmodel: {name: tiny, weights: pretrained, pretrained: gone}\n")
