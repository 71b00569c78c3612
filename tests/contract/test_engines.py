"""The descriptors of the engines: what a study, a spec, the ledger and the report read from them."""

import pytest

from harness.contract.engines import CONFIGS, Fact, pairs_apart_by


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (
            "engine",
            [
                "zero-0 ddp",
                "fsdp2-reshard zero-3",
                "fsdp2-reshard-offload zero-3-offload",
                "megatron-fsdp zero-3",
                "megatron-fsdp fsdp2-reshard",
            ],
        ),
        ("offloads", ["zero-3-offload zero-3", "fsdp2-reshard-offload fsdp2-reshard"]),
        ("keeps_gathered", ["fsdp2-noreshard fsdp2-reshard"]),
    ],
)
def test_configs_that_differ_in_one_fact_are_paired(fact: Fact, expected: list[str]) -> None:
    assert [f"{one.name} {other.name}" for one, other in pairs_apart_by(fact)] == expected


def test_stages_of_one_engine_are_paired_by_sharding() -> None:
    pairs = [(one.shards, other.shards) for one, other in pairs_apart_by("shards") if one.engine == "zero"]
    assert ("parameters", "gradients") in pairs


def test_exactly_one_config_is_the_baseline() -> None:
    assert [config.name for config in CONFIGS.values() if config.baseline] == ["ddp"]
