"""One model family without the rest of transformers, which is there as soon as somebody asks for it."""

import subprocess
import sys

from tests.engines.conftest import ROOT

PROGRAM = """
import sys
from harness.engines.imports import import_causal_lm
found = import_causal_lm("qwen2")
print([cls.__name__ for cls in found], type(sys.modules["transformers"]).__name__)
from transformers import Qwen2Config
from transformers.processing_utils import transformers_module
print(Qwen2Config is found[0], transformers_module.Qwen2Config is Qwen2Config, sys.modules["transformers"].__version__)
print(import_causal_lm("llama")[1].__name__, import_causal_lm("no_such_model"))
"""


def test_a_causal_lm_comes_without_the_rest_and_the_rest_on_request() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()[-3:]
    assert first == "['Qwen2Config', 'Qwen2ForCausalLM'] _Package"
    assert second.startswith("True True 5.")
    assert third == "LlamaForCausalLM None"
