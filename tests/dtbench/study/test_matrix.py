"""A study becomes fully resolved runs: arms, overrides, exclusions, order."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench.study.matrix import Matrix, load_matrix
from msgspec import structs

from harness.contract.engines import CONFIGS, ENGINES
from harness.contract.errors import SpecError
from harness.contract.spec import parse_spec
from tests.dtbench.conftest import run_of

ROOT = Path(__file__).resolve().parents[3]
Load = Callable[[str], Matrix]


STUDIES = sorted(p for p in (ROOT / "config").glob("*.yaml") if p.stem not in ("platforms", "prices"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_every_shipped_specs_round_trip_is_exact(path: Path) -> None:
    matrix = load_matrix(path.stem, ROOT)
    assert matrix.runs
    assert len({run.path() for run in matrix.runs}) == len(matrix.runs)
    assert all(parse_spec(run.to_json()) == run for run in matrix.runs[:10])


def test_the_quick_study_has_36_runs() -> None:
    matrix = load_matrix("quick", ROOT)
    assert len(matrix.runs) == 36
    assert {run.identity.config for run in matrix.runs} == {name for name in CONFIGS if CONFIGS[name].usual}
    assert {run.platform.name for run in matrix.runs} == {"cpu-x2"}


def test_defaults_arm_is_each_engine_as_shipped(study: Load) -> None:
    matrix = study("platforms: [h200-x2]\nrepeats: 1\ngradients: engine\n")
    for run in matrix.runs:
        engine = ENGINES[run.engine.name]
        assert run.numerics == (engine.shipped if run.identity.arm == "defaults" else engine.matched)
    shipped = {r.identity.config: r.optimizer.implementation for r in matrix.runs if r.identity.arm == "defaults"}
    assert shipped["zero-3"] == "deepspeed-fused"
    assert shipped["zero-3-offload"] == "deepspeed-cpu"
    assert shipped["fsdp2-reshard"] == shipped["fsdp2-reshard-offload"] == shipped["ddp"] == "torch-fused"
    assert {r.optimizer.implementation for r in matrix.runs if r.identity.arm == "matched"} == {"torch-fused"}


def test_on_cpus_the_shipped_cuda_kernel_gives_way(study: Load) -> None:
    matrix = study("platforms: [cpu-x2]\nconfigs: [zero-3]\narms: [defaults]\nrepeats: 1\nmodel: {name: tiny}\n")
    assert matrix.runs[0].optimizer.implementation == "torch-fused"


def test_only_the_matched_reference_config_is_the_reference(study: Load) -> None:
    matrix = study("platforms: [h200-x2]\nrepeats: 1\n")
    assert [(r.identity.config, r.identity.arm) for r in matrix.runs if r.identity.reference] == [("ddp", "matched")]


def test_overrides_apply_in_order_to_their_cells_only(study: Load) -> None:
    matrix = study(
        "platforms: [h200-x2, h200-x2-thin]\nconfigs: [ddp, {name: leaf, base: zero-3, override: {engine: "
        "{leaf_blocks: true}, environment: {A: '1'}}}]\nrepeats: 1\narms: [matched]\noverrides:\n"
        "  - {config: leaf, set: {data: {micro_batch: 4}}}\n"
        "  - {platform: h200-x2-thin, config: [leaf], set: {data: {micro_batch: 8}, launcher: torchrun}}\n"
    )
    wide = run_of(matrix, "leaf", platform="h200-x2")
    thin = run_of(matrix, "leaf", platform="h200-x2-thin")
    assert (wide.data.micro_batch, thin.data.micro_batch) == (4, 8)
    assert (wide.engine.launcher, thin.engine.launcher) == ("deepspeed", "torchrun")
    assert wide.engine.settings["leaf_blocks"] is True
    assert wide.environment == {"A": "1"}
    assert thin.environment == {"A": "1", "NCCL_P2P_DISABLE": "1"}
    assert run_of(matrix, "ddp", platform="h200-x2").data.micro_batch == 1


def test_editing_one_config_changes_its_runs_alone(study: Load) -> None:
    text = "platforms: [h200-x2]\nconfigs: [ddp, {name: mine, base: zero-3, override: {engine: {leaf_blocks: %s}}}]\n"
    before = {run.path() for run in study(text % "false").runs}
    after = {run.path() for run in study(text % "true").runs}
    assert {path.split("/")[1] for path in before - after} == {"mine"}
    assert {path.split("/")[1] for path in before & after} == {"ddp"}


def test_a_description_changes_no_run_but_the_digest(study: Load) -> None:
    one = study("platforms: [h200-x2]\ndescription: one\n")
    two = study("platforms: [h200-x2]\ndescription: two\n")
    assert [r.hash() for r in one.runs] == [r.hash() for r in two.runs]
    assert one.digest != two.digest


def test_excluded_cells_keep_their_reason(study: Load) -> None:
    matrix = study(
        "platforms: [h200-x2]\nconfigs: [ddp, zero-0]\narms: [matched]\nrepeats: 2\n"
        "exclude: [{config: zero-0, reason: not collected, why: No time.}]\n"
    )
    assert [run.identity.config for run in matrix.runs] == ["ddp", "ddp"]
    (excluded,) = [cell for cell in matrix.cells if cell.spec is None]
    assert excluded.exclusion is not None
    assert (excluded.config, excluded.exclusion.reason, excluded.exclusion.why) == (
        "zero-0",
        "not collected",
        "No time.",
    )


def test_order_is_blocks_in_seeded_random_order(study: Load) -> None:
    text = "platforms: [h200-x2]\narms: [matched]\nrepeats: 3\nseed: %d\n"
    first, again, other = (study(text % seed).runs for seed in (1, 1, 2))
    assert [r.path() for r in first] == [r.path() for r in again]
    assert [r.identity.config for r in first] != [r.identity.config for r in other]
    blocks = [[r.identity.config for r in first if r.identity.repeat == repeat] for repeat in (1, 2, 3)]
    assert [r.identity.repeat for r in first] == sorted(r.identity.repeat for r in first)
    shared = [name for name in CONFIGS if CONFIGS[name].usual]
    assert all(sorted(block) == sorted(shared) for block in blocks)
    assert blocks[0] != blocks[1]


def test_most_wanted_cells_run_first(study: Load) -> None:
    matrix = study(
        "platforms: [h200-x2]\narms: [matched]\nrepeats: 2\norder: [{config: [zero-3, fsdp2-reshard]}, {config: ddp}]\n"
    )
    names = [run.identity.config for run in matrix.runs]
    assert names[0] == "ddp", "what the parity gate compares the others with"
    assert set(names[1:5]) == {"zero-3", "fsdp2-reshard"}
    assert names[5] == "ddp"


def test_a_trial_is_judged_with_its_configs_settings(study: Load) -> None:
    text = "platforms: [h200-x1]\nconfigs: [zero-2]\narms: [tuned]\ntuned: {zero-2: [{check_grad_overflow: false}]}\n"
    (run,) = {run.engine.settings["stage"]: run for run in study(text).runs}.values()
    assert run.protocol.trials == ({"check_grad_overflow": False},)
    with pytest.raises(SpecError, match="at stage 1 or 2 only, found stage 3"):
        study(text.replace("zero-2", "zero-3"))


HEADLINE = """
platforms: [h200-x2]
configs: [ddp, zero-2, fsdp2-reshard, zero-3, zero-3-offload]
arms: [matched]
repeats: 2
pairs: [[fsdp2-reshard, zero-3, zero-2]]
"""


def test_pairs_run_side_by_side_in_turned_order(study: Load) -> None:
    matrix = study(HEADLINE)
    groups = [[run.identity.config for run in group] for group in matrix.groups if len(group) > 1]
    forward = ["fsdp2-reshard", "zero-3", "zero-2"]
    assert groups == [forward, forward[::-1], forward], "three repeats of what is a headline, two of the rest"
    repeats = Counter(run.identity.config for run in matrix.runs)
    assert repeats == {"ddp": 2, "zero-3-offload": 2, **dict.fromkeys(forward, 3)}
    assert matrix.runs[0].identity.config == "ddp", "the reference"


def test_engines_of_one_sharding_pair_by_themselves(study: Load) -> None:
    text = (
        "platforms: [h200-x2]\narms: [matched, defaults]\nrepeats: 2\nconfigs:\n"
        "  - ddp\n  - zero-0\n  - fsdp2-reshard\n  - zero-3\n"
        "  - {name: fsdp2-reshard-mb4, base: fsdp2-reshard, override: {data: {micro_batch: 4}}}\n"
        "  - {name: zero-3-mb4, base: zero-3, override: {data: {micro_batch: 4}}}\n"
        "  - {name: zero-3-mb8, base: zero-3, override: {data: {micro_batch: 8}}}\n"
    )
    groups = [group for group in study(text).groups if len(group) > 1]
    found = sorted((g[0].identity.arm, g[0].identity.repeat, *(r.identity.config for r in g)) for g in groups)
    assert found == sorted(
        (arm, repeat, *(names if repeat == 1 else names[::-1]))
        for arm in ("matched", "defaults")
        for repeat in (1, 2)
        for names in (("fsdp2-reshard", "zero-3"), ("fsdp2-reshard-mb4", "zero-3-mb4"))
    )


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ("[[zero-2, zero-4]]", r"pairs\[0\]: 'zero-4' is not in this study"),
        ("[[zero-2, zero-3], [ddp, zero-2]]", "'zero-2' is listed 2 times"),
        ("[[zero-2, mb4]]", "do not train the same"),
        ("[[zero-2]]", r"pairs\[0\]"),
    ],
)
def test_impossible_pairs_are_refused(study: Load, pairs: str, words: str) -> None:
    configs = "[ddp, zero-2, zero-3, {name: mb4, base: zero-3, override: {data: {micro_batch: 4}}}]"
    with pytest.raises(SpecError, match=words):
        study(f"platforms: [h200-x2]\nconfigs: {configs}\npairs: {pairs}\n")


def test_matched_gradients_are_float32_where_the_engine_can(study: Load) -> None:
    text = "platforms: [h200-x2]\nconfigs: [ddp, zero-1, zero-2, zero-3]\narms: [matched, defaults]\n"
    cells = {(c.config, c.arm): c for c in study(text).cells}
    kept = {key: c.spec.numerics.accumulate for key, c in cells.items() if c.spec}
    assert [kept[name, "matched"] for name in ("ddp", "zero-2", "zero-3")] == 3 * ["float32"]
    assert kept["zero-1", "matched"] == kept["zero-3", "defaults"] == "bfloat16"
    assert cells["zero-1", "matched"].peculiar == "gradients: arm promises float32, engine keeps bfloat16"
    old = {c.config: c.spec for c in study(text + "gradients: engine\n").cells if c.spec and c.arm == "matched"}
    assert old["zero-3"].numerics.accumulate == "bfloat16"


def test_remedies_switch(study: Load) -> None:
    off = study("platforms: [h200-x2]\nremedies: off\n")
    assert {run.protocol.remedies for run in off.runs} == {"off"}
    assert {run.protocol.remedies for run in study("platforms: [h200-x2]\n").runs} == {"on"}


def test_tuned_arm_carries_its_trials_and_matched_numerics(study: Load) -> None:
    matrix = study(
        "platforms: [h200-x2]\nconfigs: [fsdp2-reshard, zero-3]\narms: [tuned]\nrepeats: 1\n"
        "tuned: {fsdp2: [{}, {prefetch_depth: 2}], zero-3: [{}, {leaf_blocks: true}]}\n"
    )
    assert run_of(matrix, "fsdp2-reshard").protocol.trials == ({}, {"prefetch_depth": 2})
    assert run_of(matrix, "zero-3").protocol.trials == ({}, {"leaf_blocks": True})
    assert run_of(matrix, "zero-3").numerics == structs.replace(ENGINES["zero"].matched, accumulate="float32")
