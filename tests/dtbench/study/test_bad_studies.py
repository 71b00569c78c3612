"""Whatever cannot be run is refused before anything starts: file, key, what was found, what is allowed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.study.matrix import Matrix, load_matrix
from dtbench.workflow import parse_config, parse_rerun

from harness.contract.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]
GOOD = "platforms: [cpu-x2]\nconfigs: [ddp, zero-3]\nmodel: {name: tiny}\n"

BAD = {
    "typo in a key": (GOOD + "repeates: 2\n", r"repeates: unknown key; .*did you mean 'repeats'"),
    "typo in a nested key": (GOOD + "data: {sequence_lenght: 8}\n", r"data\.sequence_lenght: .*'sequence_length'"),
    "unknown platform": ("platforms: [h200-x22]\n", r"platforms\[0\]: unknown platform 'h200-x22'.*'h200-x2'"),
    "unknown config": (
        "platforms: [cpu-x2]\nconfigs: [zero3]\n",
        r"configs\[0\]\.name: .*'zero3'.*did you mean 'zero-3'",
    ),
    "unknown base": (
        "platforms: [cpu-x2]\nconfigs: [{name: mine, base: fsdp-reshard}]\n",
        r"configs\[0\]\.base: .*did you mean 'fsdp2-reshard'",
    ),
    "unknown arm": (GOOD + "arms: [match]\n", r"arms\[0\]: found 'match'; .*did you mean 'matched'"),
    "no platform": ("configs: [ddp]\n", r"platforms: missing; Study needs it"),
    "no platform in the list": ("platforms: []\n", r"platforms: found an empty list, expected at least one"),
    "zero steps": (GOOD + "protocol: {timed_steps: 0}\n", r"protocol\.timed_steps: found 0, expected 1 or more"),
    "negative steps": (GOOD + "protocol: {warmup_steps: -1}\n", r"protocol\.warmup_steps: found -1"),
    "micro-batch of 0": (GOOD + "data: {micro_batch: 0}\n", r"data\.micro_batch: found 0, expected 1 or more"),
    "no repeats": (GOOD + "repeats: 0\n", r"repeats: found 0, expected 1 or more"),
    "a word for a number": (GOOD + "repeats: two\n", r"repeats: found 'two', expected int"),
    "duplicate config": ("platforms: [cpu-x2]\nconfigs: [ddp, ddp]\n", r"configs: 'ddp' is listed 2 times"),
    "duplicate platform": ("platforms: [cpu-x2, cpu-x2]\n", r"platforms: 'cpu-x2' is listed 2 times"),
    "duplicate arm": (GOOD + "arms: [matched, matched]\n", r"arms: 'matched' is listed 2 times"),
    "key given twice": (GOOD + "repeats: 1\nrepeats: 2\n", r"study\.yaml: line 5: key 'repeats' is given twice"),
    "override the engine lacks": (
        "platforms: [cpu-x2]\nconfigs: [{name: leaf, base: zero-3, override: {engine: {leaf_block: true}}}]\n",
        r"configs\[0\]\.override\.engine\.leaf_block: unknown key; .*did you mean 'leaf_blocks'",
    ),
    "override of the other engine": (
        "platforms: [cpu-x2]\nconfigs: [{name: leaf, base: fsdp2-reshard, override: {engine: {leaf_blocks: true}}}]\n",
        r"configs\[0\]\.override\.engine\.leaf_blocks: a setting of zero, which fsdp2 does not have",
    ),
    "override of the wrong type": (
        "platforms: [cpu-x2]\nconfigs: [{name: leaf, base: zero-3, override: {engine: {leaf_blocks: 3}}}]\n",
        r"configs\[0\]\.override\.engine\.leaf_blocks: found 3, expected bool",
    ),
    "unknown section": (
        GOOD + "overrides: [{config: ddp, set: {engin: {}}}]\n",
        r"overrides\[0\]\.set\.engin: unknown key; .*did you mean 'engine'",
    ),
    "override of a cell that is not there": (
        GOOD + "overrides: [{config: zero-2, set: {}}]\n",
        r"overrides\[0\]\.config: 'zero-2' is not in this study; .*did you mean 'zero-3'",
    ),
    "override to a bad value": (
        GOOD + "overrides: [{config: ddp, set: {data: {micro_batch: 0}}}]\n",
        r"overrides\[0\]\.set\.data\.micro_batch: found 0",
    ),
    "unknown dtype role": (
        GOOD + "overrides: [{set: {numerics: {reduced: float32}}}]\n",
        r"overrides\[0\]\.set\.numerics\.reduced: unknown key; .*did you mean 'reduce'",
    ),
    "exclusion that excludes nothing": (
        GOOD + "exclude: [{config: ddp}, {config: ddp, arm: matched}]\n",
        r"exclude\[1\]: matches no cell",
    ),
    "bad reason": (GOOD + "exclude: [{config: ddp, reason: broken}]\n", r"exclude\[0\]\.reason: found 'broken'"),
    "unknown model": ("platforms: [cpu-x2]\nmodel: {name: tinny}\n", r"model 'tinny': not found .*did you mean 'tiny'"),
    "unknown preset": (GOOD + "protocol: {preset: carefull}\n", r"protocol\.preset: .*did you mean 'careful'"),
    "unequal budgets": (
        GOOD + "arms: [tuned]\ntuned: {ddp: [{compile: true}], zero-3: [{}, {leaf_blocks: true}]}\n",
        r"tuned: found unequal numbers of trials",
    ),
    "trial the engine lacks": (
        GOOD + "arms: [tuned]\ntuned: {ddp: [{compiled: true}], zero-3: [{}]}\n",
        r"tuned\.ddp\[0\]\.compiled: unknown key; .*did you mean 'compile'",
    ),
    "rows of another platform": (GOOD + "rows: {l4-x4: [ddp]}\n", r"rows\.l4-x4: not a platform of this study"),
    "trial the engine lacks, in an arm not asked for": (
        GOOD + "tuned: {ddp: [{compiled: true}]}\n",
        r"tuned\.ddp\[0\]\.compiled: unknown key",
    ),
    "repeats without end": (GOOD + "repeats: 1000000\n", r"repeats: found 1000000, expected at most 1000"),
    "row twice": (GOOD + "rows: {cpu-x2: [ddp, ddp]}\n", r"rows\.cpu-x2: 'ddp' is listed 2 times"),
    "unknown reference": (GOOD + "reference: dpd\n", r"reference: unknown config 'dpd'; .*did you mean 'ddp'"),
    "no number": (GOOD + "protocol: {telemetry_hz: .nan}\n", r"protocol\.telemetry_hz: found nan, expected a finite"),
    "no end": (GOOD + "protocol: {deadline_s: .inf}\n", r"protocol\.deadline_s: found inf, expected a finite"),
    "decay rates that diverge": (
        GOOD + "optimizer: {betas: [0.9, 1.5]}\n",
        r"optimizer\.betas\[1\]: found 1\.5, expected less than 1",
    ),
    "section's own key": (GOOD + "optimizer: {learning_rate: -1}\n", r"yaml: optimizer\.learning_rate: found -1"),
    "negative bucket": (
        GOOD + "overrides: [{config: ddp, set: {engine: {bucket_cap_mb: -3}}}]\n",
        r"overrides\[0\]\.set\.engine\.bucket_cap_mb: found -3",
    ),
    "unknown dtype": (
        GOOD + "overrides: [{set: {numerics: {master: bf16}}}]\n",
        r"overrides\[0\]\.set\.numerics\.master: found 'bf16'; .*did you mean 'bfloat16'",
    ),
    "unknown model in an override": (
        GOOD + "overrides: [{set: {model: {name: tinny}}}]\n",
        r"model 'tinny': not found .*did you mean 'tiny'",
    ),
    "empty pattern": (GOOD + "overrides: [{config: [], set: {}}]\n", r"overrides\[0\]\.config: found an empty list"),
    "a list of presets": (GOOD + "protocol: {preset: [quick]}\n", r"protocol\.preset: found \['quick'\]"),
    "a day that is none": (GOOD + "title: 2026-13-45\n", r"study\.yaml: line 4: found '2026-13-45' as timestamp"),
    "digits without end": (GOOD + f"seed: 1{5000 * '0'}\n", r"study\.yaml: line 4: found '10{39}' as int"),
    "bad name": (GOOD + "name: My Study\n", r"name: found 'My Study', expected lower-case"),
    "a list": ("- platforms\n", r"found a list at the top, expected a mapping"),
    "a text": ("hello\n", r"found a str at the top, expected a mapping"),
    "nothing": ("", r"found an empty file"),
    "only a comment": ("# to do\n", r"found an empty file"),
    "no YAML": ("platforms: [cpu-x2\nconfigs: x\n", r"study\.yaml:2:\d+: not YAML"),
    "a tab": ("platforms:\n\t- cpu-x2\n", r"study\.yaml:2:1: not YAML"),
    "a number as key": (GOOD + "3: x\n", r"found the key 3, expected a text"),
    "an unsafe tag": ("platforms: !!python/object/apply:os.system [ls]\n", r"study\.yaml:1:\d+: not YAML"),
    "a learning rate of 400 digits": (
        GOOD + f"optimizer: {{learning_rate: 1{400 * '0'}}}\n",
        r"optimizer\.learning_rate: found 10{70,}\.\.\., expected a finite number",
    ),
    "an override of 400 digits": (
        GOOD + f"overrides: [{{set: {{optimizer: {{learning_rate: 1{400 * '0'}}}}}}}]\n",
        r"overrides\[0\]\.set\.optimizer\.learning_rate: found 10{70,}",
    ),
    "a dtype of 400 digits": (
        GOOD + f"overrides: [{{set: {{numerics: {{master: 1{400 * '0'}}}}}}}]\n",
        r"overrides\[0\]\.set\.numerics\.master: found 10{70,}",
    ),
    "a count of 400 digits": (GOOD + f"repeats: 1{400 * '0'}\n", r"repeats: found 10{70,}\.\.\., expected .* 64 bits"),
    "a number that Python does not print": (GOOD + f"seed: 0x1{5000 * '0'}\n", r"seed: found a number of more digits"),
    "a model's name of 300 characters": (
        f"platforms: [cpu-x2]\nmodel: {{name: {300 * 'm'}}}\n",
        r"model 'm{76}\.\.\.: not found",
    ),
    "a name of 300 characters": (GOOD + f"name: {300 * 'n'}\n", r"name: found 'n{76}\.\.\., expected .* at most 63"),
    "a config that is no folder": (
        "platforms: [cpu-x2]\nconfigs: [{name: a/b, base: ddp}]\n",
        r"configs\[0\]\.name: found 'a/b', expected lower-case",
    ),
    "a secret": (GOOD + "environment: {HF_TOKEN: abc}\n", r"yaml: environment\.HF_TOKEN: looks like a secret"),
    "a secret in an override": (
        GOOD + f"overrides: [{{set: {{environment: {{MINE: hf_{30 * 'x'}}}}}}}]\n",
        r"overrides\[0\]\.set\.environment\.MINE: looks like a secret",
    ),
    "a secret in a variant": (
        "platforms: [cpu-x2]\nconfigs: [{name: mine, base: ddp, override: {environment: {MY_API_KEY: x}}}]\n",
        r"configs\[0\]\.override\.environment\.MY_API_KEY: looks like a secret",
    ),
    "a variable that no process can have": (
        GOOD + "environment: {A=B: x}\n",
        r"environment: found the name 'A=B', expected text without '='",
    ),
    "a value that no process can have": (GOOD + 'environment: {A: "x\\0"}\n', r"environment\.A: found a NUL character"),
    "nested without end": (f"platforms: {100_000 * '['}", r"study\.yaml.*(nested too deeply|not YAML)"),
    "a trial for nothing": (
        GOOD + "tuned: {foo: [{}]}\n",
        r"tuned\.foo: neither a config of this study nor an engine; allowed: ddp, zero-3, zero, fsdp2, megatron",
    ),
    "configs all commented out": (
        "platforms: [cpu-x2]\nconfigs:\n#  - ddp\narms: [matched]\n",
        "configs: found nothing, expected at least one; leave the key out",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_bad_study_is_refused_by_key(study: Callable[[str], Matrix], text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        study(text)
    assert "study.yaml" in str(refused.value)
    assert re.search(message, str(refused.value)), str(refused.value)


def test_the_good_study_of_these_tests_is_good(study: Callable[[str], Matrix]) -> None:
    assert len(study(GOOD).runs) == 2 * 2 * 3


def test_a_float_needs_no_dot(study: Callable[[str], Matrix]) -> None:
    runs = study(GOOD + "optimizer: {learning_rate: 3e-4, epsilon: 1E-6}\n").runs
    assert {(run.optimizer.learning_rate, run.optimizer.epsilon) for run in runs} == {(3e-4, 1e-6)}


def test_an_override_of_the_model_brings_its_config(study: Callable[[str], Matrix]) -> None:
    runs = study(GOOD + "overrides: [{config: ddp, set: {model: {name: qwen2.5-0.5b}}}]\n").runs
    hidden = {run.identity.config: (run.model.name, run.model.config["hidden_size"]) for run in runs}
    assert hidden["ddp"] == ("qwen2.5-0.5b", 896)
    assert hidden["zero-3"][0] == "tiny" and hidden["zero-3"][1] < 896


def test_a_missing_study_lists_what_there_is() -> None:
    with pytest.raises(SpecError, match=r"study 'quik': not found .*allowed: .*published, quick; did you mean 'quick'"):
        load_matrix("quik", ROOT)
    with pytest.raises(SpecError, match=r"study=/nowhere/x\.yaml: no such file"):
        load_matrix("/nowhere/x.yaml", ROOT)
    with pytest.raises(SpecError, match=r"config/quik\.yaml: no such file; .*did you mean 'quick\.yaml'"):
        load_matrix(str(ROOT / "config/quik.yaml"), ROOT)
    with pytest.raises(SpecError, match="study 'platforms': not found"):
        load_matrix("platforms", ROOT)


@pytest.mark.parametrize("name", [300 * "s", f"{300 * 's'}.yaml", f"{300 * 's'}/x.yaml", f"config/{300 * 's'}.yaml"])
def test_an_impossible_study_name_is_not_found(name: str) -> None:
    with pytest.raises(SpecError, match=r"^study.{0,95}\.\.\..{0,160}: (not found|no such file)"):
        load_matrix(name, ROOT)


def test_a_model_config_outside_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config/models").mkdir(parents=True)
    for name in ("platforms.yaml", "prices.yaml"):
        (tmp_path / "config" / name).write_text((ROOT / "config" / name).read_text())
    (tmp_path / "config/mine.yaml").write_text("platforms: [cpu-x2]\nconfigs: [ddp]\nmodel: {name: odd}\n")
    for text, words in (
        ('{"model_type": "qwen2", "rope": {"theta": NaN}}', r"mine\.yaml: model\.config\.rope\.theta: found nan"),
        ('{"model_type": "qwen2", "eps": 1e999}', r"mine\.yaml: model\.config\.eps: found inf"),
        (f'{{"model_type": {5000 * "1"}}}', r"odd\.json: not JSON that can be read"),
    ):
        (tmp_path / "config/models/odd.json").write_text(text)
        with pytest.raises(SpecError, match=words):
            load_matrix("mine", tmp_path)


def test_binary_and_unreadable_studies(tmp_path: Path) -> None:
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"b\.yaml: not UTF-8 text: .* at byte 0"):
        load_matrix(str(binary), ROOT)
    with pytest.raises(SpecError, match=r"gone\.yaml: no such file; .* allowed: b\.yaml"):
        load_matrix(str(tmp_path / "gone.yaml"), ROOT)
    (tmp_path / "d.yaml").mkdir()
    with pytest.raises(SpecError, match=r"d\.yaml: a folder; give a path to a file"):
        load_matrix(str(tmp_path / "d.yaml"), ROOT)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("faild", "rerun=faild: found 'faild'; .*did you mean 'failed'"),
        ("cuda_oom,hostoom", "found 'hostoom'; .*did you mean 'host_oom'"),
        (["ok", "nonsense"], "found 'nonsense'"),
    ],
)
def test_a_bad_rerun_is_refused(value: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_rerun(value)


def test_an_unknown_config_key_is_refused() -> None:
    with pytest.raises(SpecError, match=r"--config rerum=\.\.\.: unknown key; .*did you mean 'rerun'"):
        parse_config({"rerum": "failed"})


def test_an_impossible_results_folder_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"--config results=r{80}\.\.\.r{157}: r{80}\.\.\.r{157} cannot be a folder: File name too long"
    ):
        parse_config({"results": 300 * "r"})


@pytest.mark.parametrize("key", ["study", "rerun", "results"])
def test_an_unset_shell_variable_starts_nothing(key: str) -> None:
    with pytest.raises(SpecError, match=f"--config {key}=: found nothing after the '='"):
        parse_config({key: ""})
