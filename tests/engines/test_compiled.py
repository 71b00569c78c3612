"""Compiled blocks and a compiled loss train the same model. Slow: compiling takes most of a minute a rank."""

from pathlib import Path

import pytest

from tests.engines.conftest import STEPS, WRAPPERS, Trained, train
from tests.engines.specs import SMALL, make_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1600)]
TOLERANCE = 1e-3
"""Relative, on the loss; fused kernels round bfloat16 less often."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    small = {"model__config": SMALL, **STEPS}
    specs = {f"eager/{config}": make_spec(config, **small) for config in WRAPPERS}
    for config in WRAPPERS:
        specs[f"compiled/{config}"] = make_spec(config, **small, engine__settings__compile=True)
    folder: Path = tmp_path_factory.mktemp("compiled")
    return train(folder, specs)


@pytest.mark.parametrize("config", WRAPPERS)
def test_compiled_training_follows_the_eager_one(both: dict[str, Trained], config: str) -> None:
    compiled, eager = both[f"compiled/{config}"], both[f"eager/{config}"]
    assert compiled.parity == []
    assert compiled.loss == pytest.approx(eager.loss, rel=TOLERANCE)
    assert compiled.ranks[0].resolved["compile"] is True
    assert [rank.compiled_share for rank in compiled.ranks] == [1.0, 1.0]
