"""Each model family of `config/models/` trains alike under every engine, at toy size on two CPU ranks."""

from pathlib import Path

import pytest
from dtbench.study.families import NO_SDPA

from harness.measure.shapes import _FAMILIES
from tests.engines.conftest import SHARDINGS, STEPS, WRAPPERS, Trained, train
from tests.engines.specs import make_spec
from tests.engines.toys import families

pytestmark = pytest.mark.timeout(1600)
QUICK = ("gpt_oss", "qwen3_moe")
"""In every call of the suite: experts with eager attention and biases, experts with SDPA. The rest is slow."""
TOLERANCE = 2e-5
"""Relative, on the first loss: the same weights in the same dtype, so that only the order of sums differs."""
NORM_TOLERANCE = 0.01


def trained(folder: Path, kinds: tuple[str, ...], configs: tuple[str, ...]) -> dict[str, Trained]:
    toys = families()
    return train(
        folder,
        {
            f"{kind}/{config}": make_spec(
                config,
                **STEPS | {"protocol__warmup_steps": 2},
                model__config=toys[kind],
                model__attention="eager" if kind in NO_SDPA else "sdpa",
            )
            for kind in kinds
            for config in configs
        },
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    return trained(tmp_path_factory.mktemp("quick"), QUICK, WRAPPERS)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    kinds = tuple(kind for kind in families() if kind not in QUICK)
    return trained(tmp_path_factory.mktemp("rest"), kinds, SHARDINGS)


def check_alike(results: dict[str, Trained], kind: str, config: str) -> None:
    run, reference = results[f"{kind}/{config}"], results[f"{kind}/ddp"]
    assert run.parity == []
    assert run.loss[0] == pytest.approx(reference.loss[0], rel=TOLERANCE)
    assert run.ranks[0].grad_norm[0] == pytest.approx(reference.ranks[0].grad_norm[0], rel=NORM_TOLERANCE)
    assert run.loss[1] != run.loss[0]


@pytest.mark.parametrize("config", WRAPPERS)
@pytest.mark.parametrize("kind", QUICK)
def test_experts_train_alike_under_every_engine(quick: dict[str, Trained], kind: str, config: str) -> None:
    check_alike(quick, kind, config)


@pytest.mark.parametrize("kind", QUICK)
def test_the_busiest_expert_is_found(quick: dict[str, Trained], kind: str) -> None:
    found = [quick[f"{kind}/{config}"].ranks[0].busiest_experts for config in WRAPPERS]
    assert list(found[0]) == ["model.layers.0.mlp", "model.layers.1.mlp"]
    # Each token takes 2 of 8 experts, so one that all tokens take has 4 times the mean.
    assert all(1 <= share <= 4 for one in found for share in one.values())
    assert found[0] == found[1], "after the same steps the router sends the same tokens"


@pytest.mark.parametrize(("kind", "leaf"), [("gpt_oss", "GptOssMLP"), ("qwen3_moe", "Qwen3MoeSparseMoeBlock")])
def test_zero_gathers_experts_as_one(quick: dict[str, Trained], kind: str, leaf: str) -> None:
    assert quick[f"{kind}/zero-3"].ranks[0].resolved["leaf_modules"] == [leaf]


@pytest.mark.slow
@pytest.mark.parametrize("config", SHARDINGS)
@pytest.mark.parametrize("kind", sorted(families().keys() - set(QUICK)))
def test_every_family_trains_alike(rest: dict[str, Trained], kind: str, config: str) -> None:
    check_alike(rest, kind, config)


def test_families_with_a_formula_are_trained_here() -> None:
    # The client starts runs of these without building them first.
    assert set(_FAMILIES) <= set(families())
