"""`dtbench fit` answers from stored evidence, and says what it does not know."""

import json
from typing import Any

import pytest
from dtbench.cli import main


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["fit", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def configs(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["config"]: one for one in found["configs"]}


def test_largest_micro_batches_are_near_measured_frontiers(capsys: pytest.CaptureFixture[str]) -> None:
    for gpus, measured in ((1, {"fsdp2-reshard": 7, "zero-3": 6}), (2, {"fsdp2-reshard": 9, "zero-3": 8})):
        found = configs(ask(capsys, "qwen2.5-3b", "--gpu", "h200", "--gpus", str(gpus)))
        for config, largest in measured.items():
            assert abs(found[config]["largest_micro_batch"] - largest) <= 1, (gpus, config)


def test_published_runs_are_called_right(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("qwen2.5-3b", "--gpus", "4", "--arm", "defaults", "--checkpointing", "--gpu")
    on_a100, on_l4 = (configs(ask(capsys, *asked, gpu)) for gpu in ("a100-40gb", "l4"))
    assert on_a100["zero-0"]["verdict"] == "does not fit"
    for config in ("fsdp2-noreshard", "fsdp2-reshard", "zero-1", "zero-2", "zero-3", "zero-3-offload"):
        assert on_a100[config]["verdict"] == "fits"
    # ZeRO-1 died there and ZeRO-2 lived with 18.8 GiB allocated: the card is nearly full, so only a run can tell.
    assert on_l4["zero-1"]["verdict"] != "fits"
    assert on_l4["zero-2"]["verdict"] != "does not fit"
    assert on_l4["fsdp2-reshard"]["verdict"] == "fits"


def test_hours_come_from_like_records_only(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("qwen2.5-3b", "--gpu", "h200", "--gpus", "2", "--config", "fsdp2-reshard", "--tokens", "1e9")
    (known,) = ask(capsys, *asked)["configs"]
    speed = known["tokens_per_s"]
    assert speed["low"] <= speed["median"] <= speed["high"]
    assert known["gpu_hours"] == pytest.approx(2 * 1e9 / speed["median"] / 3600)
    (other,) = ask(capsys, *asked, "--sequence", "1024")["configs"]
    assert other["tokens_per_s"] is None
    assert other["hours"] is None


def test_unmeasured_families_get_a_wider_band(capsys: pytest.CaptureFixture[str]) -> None:
    def width(model: str) -> float:
        found = ask(capsys, model, "--gpu", "h200", "--gpus", "8", "--config", "fsdp2-reshard")
        return float(found["band"]["of_peak_beyond_state"])

    assert 0 == width("qwen2.5-3b") < width("llama-3.1-8b") < width("olmoe-1b-7b")


def test_the_fewest_gpus_are_the_fewest(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama-3.1-8b", "--gpu", "h100-80gb", "--config", "fsdp2-reshard", "--gpus")
    (first,) = ask(capsys, *asked, "1")["configs"]
    fewest = first["fewest_gpus"]
    assert fewest > 1
    assert ask(capsys, *asked, str(fewest))["configs"][0]["verdict"] == "fits"
    assert ask(capsys, *asked, str(fewest - 1))["configs"][0]["verdict"] != "fits"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("qwen2.5-3b", "--gpu", "h10"), "--memory GIB"),
        (("qwen2.5-3", "--gpu", "h200"), "did you mean 'qwen2.5-3b'"),
        (("qwen2.5-3b", "--gpu", "h200", "--config", "zero3"), "did you mean 'zero-3'"),
    ],
)
def test_unknown_names_get_the_nearest_ones(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *words]) != 0
    assert says in capsys.readouterr().err


def test_the_table_names_parts_and_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "qwen2.5-3b", "--gpu", "other", "--memory", "24"]) == 0
    text = capsys.readouterr().out
    assert "does not fit" in text
    assert "given as --memory" in text
    assert all(word in text for word in ("param", "grad", "optim", "gather", "activ", "logits"))
