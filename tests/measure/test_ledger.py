"""The predicted ledger against figures that others measured, and against itself."""

import pytest

from harness.contract.engines import CONFIGS, ENGINES
from harness.measure.ledger import Ledger, predict, predicted_peak_bytes
from tests.engines.specs import SMALL, make_spec
from tests.measure.test_flops import config as model_config

PUBLISHED_A100_GB = {
    "fsdp2-noreshard": 13.99,
    "fsdp2-reshard": 13.34,
    "fsdp2-reshard-offload": 7.68,
    "zero-1": 22.33,
    "zero-2": 20.14,
    "zero-3": 18.18,
    "zero-3-offload": 6.69,
}
"""Peak allocated, Qwen2.5-3B, bf16, micro-batch 1, sequence 2048, four ranks, activations checkpointed."""


def ledger(config: str, **changes: object) -> Ledger:
    found = predict(make_spec(config, **({"model__config": model_config("qwen2.5-3b")} | changes)))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("config", PUBLISHED_A100_GB)
def test_predicted_peaks_are_near_the_published_ones(config: str) -> None:
    found = ledger(
        config,
        arm="defaults",
        platform__world_size=4,
        data__sequence_length=2048,
        model__activation_checkpointing=True,
    )
    peak_gb = found.to_json()["device_peak_bytes"] / 1e9
    # What docs/fit.md says of them; why two of the published FSDP2 runs held more is not known.
    more = {"fsdp2-reshard": 1.41, "fsdp2-reshard-offload": 1.58}.get(config)
    ratio = PUBLISHED_A100_GB[config] / peak_gb
    assert ratio == pytest.approx(more, abs=0.01) if more else 0.93 <= ratio <= 1


def test_the_peak_counts_the_start_of_backward() -> None:
    # Measured on two H200s: micro-batch 9 fits (139.8 GB at its peak), 10 does not.
    def peak_gb(micro_batch: int) -> float:
        spec = make_spec(
            "fsdp2-reshard",
            arm="matched",
            model__config=model_config("qwen2.5-3b"),
            data__sequence_length=2048,
            data__micro_batch=micro_batch,
        )
        return (predicted_peak_bytes(spec) or 0) / 1e9

    assert peak_gb(9) == pytest.approx(139.8, rel=0.01)
    assert peak_gb(16) > 200


def test_zero_0_does_not_fit_forty_gigabytes() -> None:
    assert ledger("zero-0", arm="defaults", platform__world_size=4).to_json()["device_peak_bytes"] > 40e9


@pytest.mark.parametrize("config", [name for name, config in CONFIGS.items() if ENGINES[config.engine].ledger])
def test_state_is_the_engines_formula(config: str) -> None:
    found = ledger(config, platform__world_size=4)
    bytes_per_parameter = (found.state + found.host) / 3_085_938_688
    by_hand = {"ddp": 16, "zero-0": 16, "zero-1": 4 + 12 / 4, "zero-2": 2 + 14 / 4, "zero-3-offload": 20 / 4}
    assert bytes_per_parameter == pytest.approx(by_hand.get(config, 16 / 4))


def test_offload_moves_the_state_off_the_device() -> None:
    assert ledger("fsdp2-reshard-offload").state == 0
    assert ledger("fsdp2-reshard-offload").host == ledger("fsdp2-reshard").state


def test_activations_grow_with_tokens_and_shrink_with_checkpointing() -> None:
    one, two = (ledger("ddp", data__micro_batch=n).activations for n in (1, 2))
    assert two == 2 * one
    assert ledger("ddp", model__activation_checkpointing=True).activations < one / 10


def test_an_unknown_model_type_has_no_ledger() -> None:
    assert predict(make_spec("ddp", model__config=SMALL | {"model_type": "mamba"})) is None
