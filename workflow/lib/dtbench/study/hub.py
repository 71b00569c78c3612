"""A model's config.json from the Hugging Face Hub, read once and kept: the config is part of what names a run."""

import json
import os
import re
import urllib.request
from pathlib import Path
from typing import Any

from harness.contract.errors import SpecError
from harness.contract.files import write_atomically

HUB = "https://huggingface.co"
TIMEOUT_S = 5.0


def is_hub_id(text: str) -> bool:
    """Whether a text can be the name of a Hub repository, `ORG/NAME`, and is no path to a JSON file."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text) is not None and not text.endswith(".json")


def hub_config(repository: str, key: str) -> Path:
    """The file of a repository's config.json, fetched when it was not asked for before.

    Raises SpecError naming the key, and saying how to give the file, when the Hub gives none.
    """
    path = _cache() / repository.replace("/", "--") / "config.json"
    if not path.is_file():
        config = _fetch(repository, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(config, indent=2) + "\n")
    return path


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dtbench" / "hub"


def _fetch(repository: str, key: str) -> dict[str, Any]:
    address = f"{os.environ.get('HF_ENDPOINT') or HUB}/{repository}/resolve/main/config.json"
    token = os.environ.get("HF_TOKEN")
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            config = json.load(answer)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{key}: {repository!r} is no file or folder here, and the Hub gave no config ({error}); give the file: "
            f"`hf download {repository} config.json --local-dir FOLDER`, then FOLDER (a gated model needs HF_TOKEN)"
        ) from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise SpecError(f"{key}: the Hub's config.json of {repository!r} holds no model_type; give a file that does")
    return config
