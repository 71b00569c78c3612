"""What a record may say about where it ran, and what it may never say."""

import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.contract.errors import SpecError
from harness.contract.variables import refuse_secrets
from harness.supervisor import environment
from harness.supervisor.environment import REMOVED, describe_environment, public_variables

SECRETS = {
    "HF_TOKEN": "abc",
    "HF_ACCESS": "hf_" + "a" * 34,
    "NCCL_AUTH": "x",
    "TORCH_API_KEY": "y",
    "DS_PASSWORD": "z",
    "CUDA_PROXY": "http://somebody:word@host/",
    "NCCL_EXTRA": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
    "AWS_SECRET_ACCESS_KEY": "q",
}


def test_only_variables_that_change_behaviour_are_kept() -> None:
    kept = {"OMP_NUM_THREADS": "4", "NCCL_P2P_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
    assert public_variables({"NVIDIA_REQUIRE_CUDA": "cuda>=13.0 brand=tesla"}) == {}
    assert public_variables(kept | {"USER": "somebody", "HOSTNAME": "box", "HOME": "/home/somebody"}) == kept


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_dropped_by_name_or_value(name: str) -> None:
    assert SECRETS[name] not in json.dumps(public_variables(SECRETS))
    with pytest.raises(SpecError, match=rf"environment\.{name}: looks like a secret"):
        refuse_secrets({name: SECRETS[name]})


def test_a_secret_value_leaves_a_placeholder() -> None:
    assert public_variables({"HF_ACCESS": SECRETS["HF_ACCESS"]}) == {"HF_ACCESS": REMOVED}


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "NCCL_SOCKET_IFNAME", "KMP_AFFINITY"]
)
def test_an_ordinary_variable_is_no_secret(name: str) -> None:
    refuse_secrets({name: "0,1"})


def test_paths_are_blanked() -> None:
    given_paths = {"LD_PRELOAD": "/home/somebody/lib/libtcmalloc.so:/opt/x.so", "CUDA_HOME": "~/cuda"}
    public = public_variables(given_paths)
    assert "somebody" not in json.dumps(public)
    assert public["LD_PRELOAD"] == "<path>:<path>"


@given(st.text(alphabet="abcdefgh_", min_size=12, max_size=20))
def test_no_home_folder_survives(user: str) -> None:
    public = public_variables({"TORCH_HOME": f"/home/{user}/torch", "NCCL_TOPO_FILE": f"x=/home/{user}/t.xml"})
    assert user not in json.dumps(public)


def test_the_environment_never_names_the_machine() -> None:
    found = describe_environment({"OMP_NUM_THREADS": "2"}, {"cuda": "13.0"}, "cpu")
    assert found.versions["torch"]
    assert found.versions["cuda"] == "13.0"
    assert found.host["cores"] >= 1
    assert found.host["memory_gib"] > 0
    assert socket.gethostname() not in json.dumps(found.host)


def test_a_boot_is_told_apart_and_not_told() -> None:
    shown = environment.host_facts()["boot"]
    assert shown == environment.boot() and len(shown) == 12
    assert shown not in environment.BOOT_ID.read_text()


def test_another_boot_is_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = environment.boot()
    other = tmp_path / "boot_id"
    other.write_text("00000000-0000-0000-0000-000000000000\n")
    monkeypatch.setattr(environment, "BOOT_ID", other)
    assert environment.boot() not in (here, None)
    monkeypatch.setattr(environment, "BOOT_ID", tmp_path / "none")
    assert environment.boot() is None
