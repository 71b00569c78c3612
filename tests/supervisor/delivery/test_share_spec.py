"""Publishing results whose specs hold something private: refused, for a spec cannot be redacted."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harness.contract.errors import HarnessError
from harness.contract.record import read_record
from harness.delivery.share import share
from harness.supervisor import folder
from tests.engines.specs import make_spec
from tests.supervisor.delivery.test_share import an_attempt, derived, everything, place

PRETRAINED = {"model__weights": "pretrained"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (PRETRAINED | {"model__pretrained": "/home/somebody/llama"}, "spec.model.pretrained: holds a path"),
        (PRETRAINED | {"model__pretrained": "/data/team/llama"}, "spec.model.pretrained: holds a path"),
        ({"model__config___name_or_path": "~/models/llama"}, "spec.model.config._name_or_path: holds a path"),
        ({"environment": {"MASTER_HOST": "node7.internal"}}, "spec.environment.MASTER_HOST: holds a host"),
        ({"environment": {"LOGNAME": "somebody"}}, "spec.environment.LOGNAME: holds a user"),
    ],
)
def test_a_private_spec_is_refused_by_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    an_attempt(place(tmp_path))
    spec = make_spec("zero-1", **changes)
    out = tmp_path / spec.path()
    record = an_attempt(out, "zero-1")
    folder.write_record(out, structs.replace(record, spec=spec, spec_hash=spec.hash()))
    derived(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(HarnessError, match=f"{re.escape(words)}.*publish runs of a spec without it") as refused:
        share(tmp_path)
    assert "somebody" not in str(refused.value).replace(str(tmp_path), "")
    assert everything(tmp_path) == before


def test_hashes_hub_and_folder_names_are_public(tmp_path: Path) -> None:
    changes: dict[str, Any] = PRETRAINED | {
        "model__pretrained": "meta-llama/Llama-3.1-8B",
        "model__config___commit_hash": "0123456789" * 4,
        "platform__name": "gke-l4-x2",
        "environment": {"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false"},
    }
    spec = make_spec("ddp", **changes)
    record = an_attempt(tmp_path / spec.path())
    folder.write_record(tmp_path / spec.path(), structs.replace(record, spec=spec, spec_hash=spec.hash()))
    assert share(tmp_path) == 1
    assert read_record(tmp_path / spec.path() / "record.json").spec == spec
