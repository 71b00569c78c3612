"""Pretrained weights: read a checkpoint's safetensors files, one tensor at a time, under the model's own names.

Checkpoints of mixtures of experts hold one tensor for each expert, while the model has one for all. Some checkpoints
use other names. transformers knows for each family what to rename and merge, so its own operations are used here.
"""

import copy
import resource
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from harness.contract.errors import SpecError

KIB = 1024


class Checkpoint:
    """Tensors of a folder or of a Hub repository, which is downloaded first; its token is the variable HF_TOKEN."""

    def __init__(self, source: str, model: nn.Module, loading: dict[str, float]) -> None:
        """`loading` is filled while tensors are read; `measured.RankResult.loading` says with what.

        Raises SpecError for a source without safetensors files.
        """
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

        self._source, self._model, self._loading = source, model, loading
        loading |= {"download_s": 0.0, "read_bytes": 0, "read_s": 0.0}
        self._files: dict[str, Any] = {}
        for path in sorted(self._folder().glob("*.safetensors")):
            file = safe_open(path, framework="pt")
            self._files |= dict.fromkeys(file.keys(), file)
        if not self._files:
            raise SpecError(f"model.pretrained: found no *.safetensors in {source!r}, expected at least one")
        transforms = get_model_conversion_mapping(model)  # type: ignore[arg-type]
        converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
        renamings = [transform for transform in transforms if not isinstance(transform, WeightConverter)]
        self._converters = {pattern: one for one in converters for pattern in one.source_patterns}
        self._parts: dict[str, list[tuple[str | None, str]]] = {}
        expected = model.state_dict()
        for key in sorted(self._files, key=dot_natural_key):
            name, pattern = rename_source_key(
                key, renamings, converters, getattr(model, "base_model_prefix", None), expected
            )
            self._parts.setdefault(name, []).append((pattern, key))

    def _folder(self) -> Path:
        folder = Path(self._source)
        if folder.is_dir():
            return folder
        if folder.is_absolute():
            raise SpecError(f"model.pretrained: {self._source} is no folder on this machine")
        from huggingface_hub import snapshot_download

        started_s = time.perf_counter()
        folder = Path(snapshot_download(self._source, allow_patterns="*.safetensors"))
        self._loading["download_s"] = time.perf_counter() - started_s
        return folder

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor for that name of the model."""
        return name in self._parts

    def read(self, name: str) -> torch.Tensor:
        """One whole tensor on the CPU, by its name in the model. Raises SpecError when the checkpoint has none."""
        if name not in self._parts:
            raise SpecError(
                f"model.pretrained: {self._source!r} has no tensor {name!r}, which the config asks for; expected the "
                "unquantized checkpoint of that config"
            )
        parts = self._parts[name]
        pattern = parts[0][0]
        if pattern is None:
            return self._fetch(parts[0][1])
        converter = copy.deepcopy(self._converters[pattern])
        for part, key in parts:
            converter.add_tensor(name, key, part, lambda key=key: self._fetch(key))
        made = converter.convert(name, model=self._model, config=self._model.config)
        tensor: torch.Tensor = made[name][0] if isinstance(made[name], list) else made[name]
        return tensor

    def _fetch(self, key: str) -> torch.Tensor:
        started_s = time.perf_counter()
        # A copy, because pages of a mapped file are read only when they are touched.
        tensor: torch.Tensor = self._files[key].get_tensor(key).clone()
        self._loading["read_s"] += time.perf_counter() - started_s
        self._loading["read_bytes"] += tensor.numel() * tensor.element_size()
        return tensor


def finish_loading(loading: dict[str, float]) -> dict[str, float]:
    """What was noted while weights were read, with the speed and this process's peak of host memory so far."""
    if not loading:
        return {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    speed = loading["read_bytes"] / loading["read_s"] if loading["read_s"] else 0.0
    return loading | {"read_bytes_per_s": speed, "host_peak_bytes": peak}
