"""The model of a study: by its name in `config/models/`, or a Hugging Face config of the user's own from anywhere."""

import os
import re
from pathlib import Path
from typing import Any

from dtbench.study.files import find_named, is_file, is_folder
from dtbench.study.hub import hub_config, is_hub_id
from harness.contract.codec import LONGEST_NAME, read_json
from harness.contract.errors import SpecError, clip_path

DEFAULT = "qwen2.5-3b"
OWN = "for a model of your own give its Hugging Face config: `model: {config: path/to/config.json}` or a Hub id there"


def load_model(name: str | None, config: str | None, root: Path, folder: Path, key: str) -> dict[str, Any]:
    """The fields `name` and `config` of a spec's model; `folder` is the study's. Raises SpecError naming the key."""
    if config is not None:
        path = _find(config, folder, key)
        plain = _read(path, f"{key}.config")
        name = name or _default_name(path, plain, config)
        if "vocab_size" not in plain:
            raise SpecError(
                f"{key}.config: {path} holds no vocab_size; expected the config of a causal language model "
                "(of a multimodal one save the `text_config` as a file of its own)"
            )
        return {"name": name, "config": plain}
    try:
        path = find_named(key, name or DEFAULT, root / "config" / "models", ".json")
    except SpecError as error:
        raise SpecError(f"{error}; {OWN}") from None
    return {"name": name or DEFAULT, "config": _read(path, f"{key}.name")}


def study_model(
    name: str | None, config: str | None, pretrained: str | None, root: Path, folder: Path, key: str
) -> dict[str, Any]:
    """The same with `pretrained`, which also gives the config where neither name nor config is given."""
    weights = locate_weights(pretrained, folder, key)
    found = load_model(name, config or (weights if name is None else None), root, folder, key)
    return found | ({"pretrained": weights} if weights is not None else {})


def locate_weights(pretrained: str | None, folder: Path, key: str) -> str | None:
    """Pretrained weights as a run finds them: a Hub id, or an absolute folder. Raises SpecError for anything else.

    An absolute path is not looked at: it may exist only on the machine that trains.
    """
    if pretrained is None or Path(pretrained).is_absolute():
        return pretrained
    for base in _bases(folder):
        if is_folder(base / pretrained):
            return str((base / pretrained).resolve())
    if is_hub_id(pretrained):
        return pretrained
    raise SpecError(
        f"{key}.pretrained: found no folder {pretrained}; expected one with *.safetensors, relative to the study or to "
        "the working directory, an absolute path, or a Hub id, ORG/NAME"
    )


def _bases(folder: Path) -> list[Path]:
    """Where relative paths start: the study's folder, the working directory, and where `dtbench` was called."""
    return list(dict.fromkeys((folder, Path(), Path(os.environ.get("DTBENCH_CALLER", "")))))


def find_model(word: str, root: Path, key: str) -> dict[str, Any]:
    """The same for one word on the command line: a name in `config/models/`, a config.json, its folder, or a Hub id."""
    is_name = Path(word).name == word and not word.endswith(".json")
    is_config = not is_name or is_file(Path(word)) or is_folder(Path(word))
    return load_model(None, word, root, Path(), key) if is_config else load_model(word, None, root, Path(), key)


def _find(given: str, folder: Path, key: str) -> Path:
    tried = [base / Path(given).expanduser() for base in _bases(folder)]
    paths = [path / "config.json" if is_folder(path) else path for path in tried]
    for path in paths:
        if is_file(path):
            return path
    if is_hub_id(given):
        return hub_config(given, f"{key}.config")
    places = " or ".join(dict.fromkeys(clip_path(path) for path in paths))
    raise SpecError(
        f"{key}.config: found no file {places}; expected a Hugging Face config.json or the folder that holds it, "
        "relative to the study or to the working directory, or a Hub id, ORG/NAME"
    )


def _read(path: Path, key: str) -> dict[str, Any]:
    try:
        config = read_json(path)
    except SpecError as error:
        raise SpecError(f"{key}: {error}; expected a Hugging Face config.json") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise SpecError(
            f"{key}: {path} holds no model_type; expected a Hugging Face config.json, which names its family there, "
            'for example "model_type": "llama"'
        )
    return config


def _default_name(path: Path, config: dict[str, Any], given: str) -> str:
    """The folder's or file's name; the config's own where that is the hash of a snapshot in the Hub's cache."""
    own = path.parent.resolve().name if path.name == "config.json" else path.stem
    if is_hub_id(given) and own == given.replace("/", "--"):
        own = given.rpartition("/")[2]
    origin = str(config.get("_name_or_path", "")).rpartition("/")[2]
    for found in (own, origin, config["model_type"]):
        name = re.sub(r"[^a-z0-9._-]+", "-", found.lower())[:LONGEST_NAME].strip("._-")
        if name and not re.fullmatch("[0-9a-f]{40}", name):
            return name
    return "model"
