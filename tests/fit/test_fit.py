"""`dtbench fit` answers from stored evidence, and says what it does not know."""

import json
from pathlib import Path
from typing import Any

import pytest
from dtbench.cli import main
from dtbench.study.platforms import load_platforms, load_prices
from msgspec.structs import replace

from harness.contract.codec import encode
from harness.contract.frontier import parse_frontier
from harness.contract.record import read_record

ROOT = Path(__file__).resolve().parents[2]


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["fit", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def configs(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["config"]: one for one in found["configs"]}


def test_largest_micro_batches_are_near_measured_frontiers(capsys: pytest.CaptureFixture[str]) -> None:
    for gpus, measured in ((1, {"fsdp2-reshard": 7, "zero-3": 6}), (2, {"fsdp2-reshard": 9, "zero-3": 8})):
        found = configs(ask(capsys, "qwen2.5-3b", "--gpu", "h200", "--gpus", str(gpus), "--gradients", "engine"))
        for config, largest in measured.items():
            assert abs(found[config]["largest_micro_batch"] - largest) <= 1, (gpus, config)


def published() -> dict[tuple[str, str], str]:
    """(card, config) -> what its published runs show; runs that died for another reason than memory show nothing."""
    shown: dict[tuple[str, str], str] = {}
    for path in sorted((ROOT / "results" / "published").rglob("record.json")):
        record = read_record(path)
        cell = record.spec.platform.accelerator, record.spec.identity.config
        if record.outcome == "ok":
            shown[cell] = "close" if record.tries[-1].remedy else "fits"
        elif record.outcome == "cuda_oom":
            shown.setdefault(cell, "does not fit")
    return shown


@pytest.mark.parametrize(("cell", "shows"), published().items(), ids=lambda value: "-".join(value))
def test_each_published_cell_is_called_right(
    cell: tuple[str, str], shows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card, config = cell
    asked = ("qwen2.5-3b", "--gpus", "4", "--arm", "defaults", "--checkpointing", "--gpu", card, "--config", config)
    assert configs(ask(capsys, *asked))[config]["verdict"] == shows


def test_the_published_cells_are_all_there() -> None:
    shows = list(published().values())
    # Two needed expandable segments on L4, so only a run could tell.
    assert {word: shows.count(word) for word in shows} == {"fits": 10, "does not fit": 2, "close": 2}


def test_hours_come_from_like_records_only(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("qwen2.5-3b", "--gpu", "h200", "--gpus", "2", "--config", "fsdp2-reshard", "--tokens", "1e9")
    (known,) = ask(capsys, *asked)["configs"]
    speed = known["tokens_per_s"]
    assert speed["low"] <= speed["median"] <= speed["high"]
    assert known["gpu_hours"] == pytest.approx(2 * 1e9 / speed["median"] / 3600)
    assert known["usd"] == {}  # nobody sells two H200s by an offer of config/platforms.yaml
    (paid,) = ask(capsys, *asked, "--usd-per-hour", "7")["configs"]
    assert paid["usd"] == {"--usd-per-hour": pytest.approx(7 * known["hours"])}
    (other,) = ask(capsys, *asked, "--sequence", "1024")["configs"]
    assert other["tokens_per_s"] is None
    assert other["hours"] is None


def test_dollars_follow_the_platforms_offers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("qwen2.5-3b", "--gpu", "a100-40gb", "--gpus", "4", "--config", "ddp", "--tokens", "1e9")
    stored = read_record(next((ROOT / "results" / "h200-x2-2026" / "h200-x2" / "ddp" / "matched").rglob("record.json")))
    platform = replace(stored.spec.platform, accelerator="a100-40gb", world_size=4)
    record = replace(stored, spec=replace(stored.spec, platform=platform))
    (tmp_path / "record.json").write_text(json.dumps(encode(record)))
    (found,) = ask(capsys, *asked, "--records", str(tmp_path))["configs"]
    prices = {key: price.usd_per_hour for key, price in load_prices(ROOT / "config" / "prices.yaml").items()}
    offers = load_platforms(ROOT / "config" / "platforms.yaml")["a100-40gb-x4"].offers
    assert offers
    assert list(found["usd"].values()) == pytest.approx([prices[offer] * found["hours"] for offer in offers])
    (apart,) = ask(capsys, *asked, "--records", str(tmp_path), "--gpus", "2", "--nodes", "2")["configs"]
    assert apart["hours"] is None


def test_float32_gradients_cost_two_bytes_a_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama-3.1-8b", "--gpu", "h200", "--config", "zero-3", "--gradients")
    wide, narrow = (ask(capsys, *asked, kept)["configs"][0]["parts_bytes"] for kept in ("float32", "engine"))
    assert wide["gradients"] - narrow["gradients"] == 2 * 8_030_261_248


def test_hsdp_shards_inside_a_node_only(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama-3.1-8b", "--gpu", "h200", "--config", "fsdp2-hsdp", "fsdp2-reshard", "--gpus", "8", "--nodes")
    one, two = (configs(ask(capsys, *asked, nodes)) for nodes in ("1", "2"))
    assert two["fsdp2-hsdp"]["peak_bytes"] == one["fsdp2-hsdp"]["peak_bytes"]
    assert two["fsdp2-reshard"]["peak_bytes"] < one["fsdp2-reshard"]["peak_bytes"]


def test_unmeasured_families_get_a_wider_band(capsys: pytest.CaptureFixture[str]) -> None:
    def width(model: str) -> float:
        found = ask(capsys, model, "--gpu", "h200", "--gpus", "8", "--config", "fsdp2-reshard")
        return float(found["band"]["of_peak_beyond_state"])

    assert 0 == width("qwen2.5-3b") == width("llama-3.1-8b") == width("olmoe-1b-7b")
    assert 0 < width("qwen3-8b") < width("qwen3-30b-a3b")


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "fit-x1" / "frontier").rglob("frontier.json")), ids=str)
def test_no_micro_batch_that_died_was_called_fit(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = parse_frontier(json.loads(path.read_text()))
    config, _, moe = found.config.rpartition("-moe") if found.config.endswith("-moe") else (found.config, "", None)
    model = "llama-3.1-8b" if moe is None else "olmoe-1b-7b"
    asked = (
        model,
        "--gpu",
        "h200",
        "--sequence",
        "512",
        "--checkpointing",
        "--gradients",
        "engine",
        "--config",
        config,
    )
    (answered,) = ask(capsys, *asked)["configs"]
    assert found.largest_fit is not None
    assert answered["largest_micro_batch"] <= found.largest_fit
    (beyond,) = ask(capsys, *asked, "--micro-batch", str(found.largest_fit + 1))["configs"]
    assert beyond["verdict"] != "fits"


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory", "nan"], "argument --memory: found 'nan', expected a number above 0"),
        (["--memory", "1e300"], "--memory: found 1e+300 GiB; expected the memory of one card"),
        (["--memory", "1.5"], "--memory: found 1.5 GiB; expected the memory of one card"),
        (["--tokens", "1e400"], "argument --tokens: found '1e400', expected a number above 0"),
        (["--usd-per-hour", "-1"], "argument --usd-per-hour: found '-1', expected a number above 0"),
        (["--gpus", "99999999999999999999"], "argument --gpus: found '99999999999999999999', expected a whole number"),
        (["--records", "no-such-folder"], "--records: found no folder no-such-folder"),
        (["--gpu", "h100"], "did you mean 'h100-80gb'?"),
    ],
)
def test_a_wrong_number_is_refused_in_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("fit", "init") if words[0] in ("--memory", "--gpus", "--gpu") else ("fit",):
        try:
            assert main([command, "qwen3-8b", "--gpu", "h200", *words]) == 64
        except SystemExit as ended:
            assert ended.code == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("key", "size"), [("hidden_size", "hidden"), ("num_hidden_layers", "layers")])
def test_a_model_without_size_is_refused(
    key: str, size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((ROOT / "config/models/qwen3-0.6b.json").read_text()) | {key: -3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["fit", str(tmp_path), "--gpu", "h200"]) == 64
    assert f"the config gives -3 as the model's {size}, expected 1 or more" in capsys.readouterr().err


def test_a_missing_path_is_called_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "models/nowhere/config.json", "--gpu", "h200"]) == 64
    assert "found no file models/nowhere/config.json" in capsys.readouterr().err
