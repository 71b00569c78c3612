"""Import one model family of transformers without the rest of the library.

Measured with transformers 5.24 and torch 2.13, in CPU seconds of each rank of each run: importing Qwen2 takes 5.6 s
as shipped and 3.0 s with all of this (1.4 s for the packages, the rest for the two detours). A causal LM uses none of
what is left out. tests/engines/test_imports.py fails when a release of transformers makes this useless.
"""

import importlib.machinery
import importlib.util
import sys
import types
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch


def import_causal_lm(model_type: str) -> tuple[type, type] | None:
    """(config class, causal LM class) of a Hugging Face model type; None when there is none."""
    _skip_scan_of_families()
    _skip_detours()
    # The mappings import the one family that is asked for; `AutoModelForCausalLM` drags in the whole auto factory.
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if model_type not in CONFIG_MAPPING:
        return None
    config_class = CONFIG_MAPPING[model_type]
    if config_class not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    found = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    # A family may list several classes for the task, its default first.
    model_class = found[0] if isinstance(found, tuple) else found
    return (config_class, model_class) if model_class is not None else None


class _Package(types.ModuleType):
    """transformers with its path and version, whose `__init__` runs when somebody asks for more than a module of it."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self.__path__ = [str(path)]
        self.__file__ = str(path / "__init__.py")
        self.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
        self.__package__ = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        name = f"{self.__name__}.{attribute}"
        if importlib.util.find_spec(name):
            return importlib.import_module(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


def _skip_scan_of_families() -> None:
    # `transformers` and `transformers.models` both read the source of every model family to know what they could
    # lazily import. Bare packages with the same paths import their submodules just as well.
    spec = importlib.util.find_spec("transformers")
    if "transformers" in sys.modules or spec is None or not spec.submodule_search_locations:
        return
    place = Path(spec.submodule_search_locations[0])
    package = _Package("transformers", place)
    package.__version__ = version("transformers")
    sys.modules["transformers"] = package
    sys.modules["transformers.models"] = _Package("transformers.models", place / "models")


def _skip_detours() -> None:
    # Two modules that every model imports take a detour while they are imported; others need no patch.
    import transformers.utils

    with suppress(ImportError):
        # The losses of object detection import scipy.optimize. They come first, because the processors import the
        # losses too.
        with patch.object(transformers.utils, "is_scipy_available", lambda: False, create=True):
            importlib.import_module("transformers.loss.loss_utils")
        # The processors import all of transformers a second time, past `sys.modules`.
        again = lambda *_, **__: sys.modules["transformers"]  # noqa: E731
        with patch.object(transformers.utils, "direct_transformers_import", again, create=True):
            importlib.import_module("transformers.processing_utils")
