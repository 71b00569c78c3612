"""Families that no engine can build are refused before a study starts."""

import json
import re
from pathlib import Path

import pytest
from dtbench.cli import main
from dtbench.study.families import check_families

from harness.contract.errors import SpecError
from harness.contract.spec import Model

GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}


def model(config: dict[str, object], attention: str = "sdpa") -> Model:
    return Model(name="own", config=config, attention=attention)  # type: ignore[arg-type]


def test_a_family_without_formula_passes_when_it_builds() -> None:
    check_families([model(GPT2), model(GPT2)])


@pytest.mark.parametrize(
    ("config", "attention", "message"),
    [
        ({"model_type": "no_such_family"}, "sdpa", r"no engine can train model_type 'no_such_family'.*no causal LM"),
        ({"model_type": "openai-gpt", "n_layer": 1}, "eager", "does not say which of its modules are its decoder"),
        ({"model_type": "mamba"}, "flash_attention_2", r"attention: found 'flash_attention_2'.*it has eager"),
    ],
)
def test_a_family_that_cannot_run_is_refused(config: dict[str, object], attention: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_families([model(config, attention)])
    assert re.search(message, str(refused.value)), str(refused.value)


def test_check_refuses_it_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_family", "vocab_size": 9}))
    (tmp_path / "s.yaml").write_text(f"platforms: [cpu-x2]\nmodel: {{config: {tmp_path}}}\n")
    assert main(["check", str(tmp_path / "s.yaml")]) == 64
    assert "no engine can train model_type 'no_such_family'" in capsys.readouterr().err
