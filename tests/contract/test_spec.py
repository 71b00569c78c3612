"""The run contract: round trip, hash, names, and every bad spec refused by dotted key."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.contract.codec import encode
from harness.contract.engines import CONFIGS, ENGINES, resolve_settings
from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec, parse_spec, read_spec

NAME = r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"
PLAIN: dict[str, Any] = {
    "spec_version": 1,
    "identity": {"study": "quick", "config": "zero-3", "arm": "matched", "repeat": 1, "attempt": 1},
    "platform": {
        "name": "cpu-x2", "device": "cpu", "world_size": 2, "accelerator": "cpu", "interconnect": "loopback",
    },
    "model": {"name": "tiny", "config": {"model_type": "qwen2"}},
    "data": {"sequence_length": 64, "micro_batch": 2, "gradient_accumulation": 3},
    "optimizer": {"implementation": "torch-fused"},
    "numerics": encode(ENGINES["zero"].matched),
    "protocol": {"warmup_steps": 2, "timed_steps": 5},
    "engine": {"name": "zero", "launcher": "deepspeed", "settings": resolve_settings("zero", {})},
    "environment": {},
    "offer": {},
}  # fmt: skip


def changed(key: str, value: Any) -> dict[str, Any]:
    """PLAIN with one dotted key set (or, for `...`, removed)."""
    plain = copy.deepcopy(PLAIN)
    *parents, last = key.split(".")
    node = plain
    for parent in parents:
        node = node[parent]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return plain


def test_round_trip_keeps_meaning_and_hash() -> None:
    spec = parse_spec(PLAIN)
    again = parse_spec(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.hash() == spec.hash()
    assert spec.tokens_per_step == 64 * 2 * 3 * 2


def test_an_integer_for_a_number_keeps_the_hash() -> None:
    assert (
        parse_spec(changed("protocol.deadline_s", 60)).hash() == parse_spec(changed("protocol.deadline_s", 60.0)).hash()
    )


def test_a_stated_default_keeps_the_hash() -> None:
    # Committed results lie under this hash: a change here orphans them all.
    assert parse_spec(PLAIN).run_hash()[:12] == "3729b2da456c"
    stated = changed("protocol.parity_tolerance", 0.02)
    assert parse_spec(stated).run_hash() == parse_spec(PLAIN).run_hash()
    assert parse_spec(changed("protocol.parity_tolerance", 0.03)).run_hash() != parse_spec(PLAIN).run_hash()


SPOT = {"machine_type": "a2-highgpu-4g", "spot": True, "cpus": 44, "memory_gib": 300}


def test_bought_otherwise_it_is_the_same_run() -> None:
    spot = parse_spec(changed("offer", SPOT | {"zone": "us-central1-a"}))
    on_demand = parse_spec(changed("offer", SPOT | {"spot": False, "price": "a2-highgpu-4g/us-central1/on-demand"}))
    assert (spot.hash(), spot.path(), spot.job_name()) == (on_demand.hash(), on_demand.path(), on_demand.job_name())
    assert spot.run_hash() == parse_spec(PLAIN).run_hash()
    assert spot != on_demand
    assert spot.is_same_run(on_demand)
    assert not spot.is_same_run(parse_spec(changed("data.micro_batch", 3)))


def test_specs_with_the_offer_inside_keep_their_hash() -> None:
    old = changed("platform", PLAIN["platform"] | SPOT)
    del old["offer"]
    spec = parse_spec(old)
    # What the code of November 2026 made of the same text.
    assert spec.run_hash()[:12] == "eed777ede8ce"
    assert (spec.offer.machine_type, spec.offer.spot, spec.offer.memory_gib) == ("a2-highgpu-4g", True, 300.0)
    assert parse_spec(spec.to_json()) == spec
    bought = changed("platform", PLAIN["platform"] | {"hashed_offer": SPOT})
    assert parse_spec(bought).run_hash() == spec.run_hash()


def test_attempts_of_one_run_have_different_names() -> None:
    first, second = parse_spec(PLAIN), parse_spec(changed("identity.attempt", 2))
    assert first.run_hash() == second.run_hash()
    assert first.hash() != second.hash()
    assert first.path() != second.path()
    assert first.job_name() != second.job_name()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("spec_version", 2, r"spec_version: found 2, this harness reads 1"),
        ("data.micro_batch", 0, r"data\.micro_batch: found 0, expected 1 or more"),
        ("data.micro_batch", "2", r"data\.micro_batch: found '2', expected int"),
        ("data.micro_batch", True, r"data\.micro_batch: found True, expected int"),
        ("data.sequence_lenght", 64, r"data\.sequence_lenght: unknown key.*did you mean 'sequence_length'"),
        ("data.sequence_length", ..., r"data\.sequence_length: missing"),
        ("protocol.timed_steps", 0, r"protocol\.timed_steps: found 0"),
        ("protocol.warmup_steps", -1, r"protocol\.warmup_steps: found -1, expected 0 or more"),
        ("protocol.ladder", [4, 2], r"protocol\.ladder: found \[4, 2\], expected rising sizes"),
        ("protocol.trials", [{"stge": 3}], r"protocol\.trials\[0\]\.stge: unknown key.*did you mean 'stage'"),
        ("identity.arm", "machted", r"identity\.arm: found 'machted'.*did you mean 'matched'"),
        ("identity.repeat", 0, r"identity\.repeat: found 0"),
        ("platform.world_size", 0, r"platform\.world_size: found 0"),
        ("platform.memory_cap_gib", 0.0, r"platform\.memory_cap_gib: found 0"),
        ("model.config", {}, r"model\.config\.model_type: missing"),
        ("model.weights", "pretrained", r"model\.pretrained: give a name"),
        ("engine.settings.stage", 4, r"engine\.settings\.stage: found 4"),
        ("engine.settings.reshard_after_forward", True, r"engine\.settings\.reshard_after_forward: a setting of fsdp2"),
        ("engine.settings.pin_memory", ..., r"engine\.settings\.pin_memory: missing"),
        ("engine.name", "zerro", r"engine\.name: found 'zerro'.*did you mean 'zero'"),
        ("numerics.compute", "float16", r"numerics\.compute: float16 does not train on CPU"),
        ("optimizer.betas", [0.9], r"optimizer\.betas: found \[0\.9\], expected a list of 2"),
        ("faults", [{"kind": "oom", "rank": 2}], r"faults\[0\]\.rank: found 2, expected 0 to 1"),
        ("environment", ["A=1"], r"environment: found \['A=1'\], expected a mapping"),
        ("environment", {"A=1": "x"}, r"environment: found the name 'A=1', expected text without '=' and NUL"),
        ("environment", {"": "x"}, r"environment: found the name '', expected text"),
        ("environment", {"A\0": "x"}, r"environment: found the name 'A\\x00', expected text"),
        ("environment", {"A": "x\0y"}, r"environment\.A: found a NUL character"),
        ("environment", {"A": "\ud800"}, r"environment\.A: found .*half of a surrogate pair"),
        ("identity.study", "../other", r"identity\.study: found '\.\./other', expected lower-case letters"),
        ("identity.study", "a\0b", r"identity\.study: found 'a\\x00b'"),
        ("identity.config", "", r"identity\.config: found ''"),
        ("identity.config", 64 * "a", r"identity\.config: found 'a{64}', expected .* at most 63"),
        ("platform.name", "odd name/..", r"platform\.name: found 'odd name/\.\.'"),
        ("offer.cpus", -4, r"offer\.cpus: found -4, expected 1 or more"),
        ("offer.cpus", True, r"offer\.cpus: found True, expected int"),
        ("offer.memory_gib", 0, r"offer\.memory_gib: found 0, expected more than 0"),
    ],
)  # fmt: skip
def test_a_bad_spec_is_refused_by_key(key: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(changed(key, value))


NAN, DIGITS, MORE_DIGITS = float("nan"), 10**400, 16**5000
SHOWN = r"10{70,}\.\.\."


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("offer.memory_gib", NAN, r"offer\.memory_gib: found nan, expected a finite number"),
        ("optimizer.learning_rate", DIGITS, rf"optimizer\.learning_rate: found {SHOWN}, expected a finite number"),
        ("data.micro_batch", DIGITS, rf"data\.micro_batch: found {SHOWN}, expected a number of at most 64 bits"),
        ("data.seed", MORE_DIGITS, r"data\.seed: found a number of more digits than Python prints, expected"),
        ("protocol.ladder", [1, DIGITS], rf"protocol\.ladder\[1\]: found {SHOWN}, expected .* at most 64 bits"),
        ("protocol.reference_loss", [1.0, NAN], r"protocol\.reference_loss\[1\]: found nan, expected a finite number"),
        ("model.config", {"model_type": "x", "a": [{"b": NAN}]}, r"model\.config\.a\[0\]\.b: found nan, expected"),
        ("model.config", {"model_type": "x", "a": MORE_DIGITS}, r"model\.config\.a: found a number of more digits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_unusable_number_is_refused_by_key(key: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(changed(key, value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"spec\.json:1:2: not JSON"),
        ("[]", r"spec\.json: RunSpec: found \[\], expected a mapping"),
        ("{}", r"spec\.json: spec_version: missing"),
        ("1" * 5000, r"spec\.json: not JSON that can be read: Exceeds the limit"),
        ("[" * 100_000, r"spec\.json: nested too deeply"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        read_spec(path)


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nothing\.json: cannot be read"):
        read_spec(tmp_path / "nothing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8"):
        read_spec(tmp_path / "bytes.json")


@given(
    study=st.from_regex(NAME, fullmatch=True),
    config=st.from_regex(NAME, fullmatch=True),
    repeat=st.integers(1, 10**6),
    attempt=st.integers(1, 10**6),
)
def test_job_names_are_legal_labels_for_any_study(study: str, config: str, repeat: int, attempt: int) -> None:
    plain = copy.deepcopy(PLAIN)
    plain["identity"].update(study=study, config=config, repeat=repeat, attempt=attempt)
    name = parse_spec(plain).job_name()
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
    assert name.endswith(f"-a{attempt}")


@pytest.mark.parametrize("config", CONFIGS.values(), ids=lambda c: c.name)
def test_every_named_config_resolves_completely(config: Any) -> None:
    settings = resolve_settings(config.engine, config.settings)
    launcher = ENGINES[config.engine].launcher
    plain = changed("engine", {"name": config.engine, "launcher": launcher, "settings": settings})
    spec: RunSpec = parse_spec(plain)
    assert spec.engine.settings == settings


def test_only_the_matched_arm_has_equal_masters() -> None:
    assert ENGINES["fsdp2"].shipped.master != ENGINES["zero"].shipped.master
    roles = ("compute", "master", "optimizer_state", "reduce")
    matched = {tuple(getattr(engine.matched, role) for role in roles) for engine in ENGINES.values()}
    assert matched == {("bfloat16", "float32", "float32", "float32")}
