"""One model family without the rest of transformers, which is there as soon as somebody asks for it."""

import ast
import subprocess
import sys

import pytest
from dtbench.study.families import NO_SDPA

from tests.engines.conftest import ROOT

PROGRAM = """
import sys
from pathlib import Path
from harness.engines.imports import import_causal_lm
found = import_causal_lm("qwen2")
print([cls.__name__ for cls in found], type(sys.modules["transformers"]).__name__, "scipy" in sys.modules)
from transformers import Qwen2Config
from transformers.processing_utils import transformers_module
print(Qwen2Config is found[0], transformers_module.Qwen2Config is Qwen2Config, sys.modules["transformers"].__version__)
print(import_causal_lm("llama")[1].__name__, import_causal_lm("no_such_model"))
import transformers
text = [Path(module.__file__).read_text() for module in map(sys.modules.get, (
    "transformers", "transformers.processing_utils", "transformers.loss.loss_for_object_detection"))]
expected = "define_import_structure(", "= direct_transformers_import(", "is_scipy_available()"
print(*(name in source for name, source in zip(expected, text)))
"""


def test_one_model_family_comes_without_the_rest() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, third, fourth = done.stdout.splitlines()[-4:]
    assert first == "['Qwen2Config', 'Qwen2ForCausalLM'] _Package False"
    assert second.startswith("True True 5."), "all of transformers must come on request"
    assert third == "LlamaForCausalLM None"
    assert fourth == "True True True", "transformers changed: measure harness/engines/imports.py again"


@pytest.mark.slow
def test_families_without_sdpa_are_all_known() -> None:
    program = (
        "from harness.engines.imports import import_causal_lm\n"
        "from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as names\n"
        "print(sorted(kind for kind in names if not import_causal_lm(kind)[1]._supports_sdpa))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(ast.literal_eval(done.stdout.splitlines()[-1])) == NO_SDPA, "transformers changed: correct NO_SDPA"
