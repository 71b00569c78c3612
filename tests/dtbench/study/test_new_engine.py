"""A new engine is a descriptor: study, spec, ledger and trials need no other edit."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from dtbench.study.matrix import Matrix
from msgspec import Struct

from harness.contract.engines import CONFIGS, ENGINES
from harness.contract.engines.descriptor import Config, Descriptor, bf16_compute
from harness.contract.engines.memory import Ledger, Sizes
from harness.contract.errors import SpecError
from harness.contract.spec import parse_spec
from harness.measure.ledger import predict, predicted_peak_bytes, state_bytes_per_parameter

Load = Callable[[str], Matrix]
STUDY = "platforms: [h200-x2]\nconfigs: [fourth-plain, fourth-wide]\nrepeats: 1\n"


class FourthSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an engine that exists in this test alone."""

    width: int = 1


def ledger(settings: FourthSettings, sizes: Sizes) -> Ledger:
    part = sizes.parameters * sizes.bytes["parameter"] // sizes.world_size
    return Ledger(parameters=part, gradients=part, optimizer=2 * part, buckets=settings.width)


FOURTH = Descriptor(
    name="fourth",
    launcher="torchrun",
    settings=FourthSettings,
    configs=(
        Config(name="fourth-plain", engine="fourth", shards="parameters"),
        Config(name="fourth-wide", engine="fourth", shards="parameters", offloads=True, settings={"width": 2}),
    ),
    shipped=bf16_compute(parameter="bfloat16", master="bfloat16", reduce="bfloat16"),
    matched=bf16_compute(parameter="float32", master="float32", reduce="float32"),
    optimizers={("cuda", True): "deepspeed-cpu"},
    trials=lambda settings: ({}, {"width": settings.width + 1}),
    ledger=ledger,
)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Descriptor], None]:
    def add(engine: Descriptor) -> None:
        monkeypatch.setitem(ENGINES, engine.name, engine)
        for config in engine.configs:
            monkeypatch.setitem(CONFIGS, config.name, config)

    return add


def test_a_descriptor_is_all_a_study_needs(register: Callable[[Descriptor], None], study: Load) -> None:
    register(FOURTH)
    matrix = study(STUDY + "arms: [defaults, matched, tuned]\n")
    runs = {(run.identity.config, run.identity.arm): run for run in matrix.runs}
    shipped, wide = runs["fourth-plain", "defaults"], runs["fourth-wide", "tuned"]
    assert (shipped.numerics, wide.numerics) == (FOURTH.shipped, FOURTH.matched)
    assert shipped.optimizer.implementation == "torch-fused"
    assert runs["fourth-wide", "defaults"].optimizer.implementation == "deepspeed-cpu"
    assert wide.protocol.trials == ({}, {"width": 3})
    assert parse_spec(wide.to_json()) == wide


def test_a_descriptor_predicts_its_own_memory(register: Callable[[Descriptor], None], study: Load) -> None:
    register(FOURTH)
    run = next(run for run in study(STUDY + "arms: [matched]\n").runs if run.identity.config == "fourth-wide")
    found = predict(run)
    assert found is not None and found.buckets == 2 and found.activations > 0
    assert state_bytes_per_parameter(run) == 16 / 2


def test_an_engine_without_ledger_is_never_predicted(register: Callable[[Descriptor], None], study: Load) -> None:
    register(replace(FOURTH, ledger=None))
    run = study(STUDY + "arms: [matched]\n").runs[0]
    assert predict(run) is predicted_peak_bytes(run) is state_bytes_per_parameter(run) is None


def test_an_unregistered_engine_lists_the_known(study: Load) -> None:
    plain = study("platforms: [h200-x2]\nconfigs: [ddp]\narms: [matched]\nrepeats: 1\n").runs[0].to_json()
    with pytest.raises(SpecError, match=r"engine\.name: found 'fourth'; allowed: ddp, zero, fsdp2"):
        parse_spec(plain | {"engine": plain["engine"] | {"name": "fourth"}})
