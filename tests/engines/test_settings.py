"""Settings do what they say: read back from the running engine, at the same losses as without them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec import structs
from torch.utils._python_dispatch import TorchDispatchMode

from harness.contract.engines import resolve_settings
from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec
from harness.engines.base import Context, build_engine
from harness.engines.kernels import use_liger
from harness.engines.loop import Tokens
from tests.engines.conftest import STEPS, Trained, train
from tests.engines.specs import SMALL, make_spec

TOLERANCE = 1e-3
"""Relative, on the loss: another order of bfloat16 sums, and nothing else."""


def small(config: str, **changes: Any) -> RunSpec:
    return make_spec(config, model__config=SMALL, **STEPS, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    def setting(name: str, value: Any) -> dict[str, Any]:
        return {f"engine__settings__{name}": value}

    specs = {
        "zero-2": small("zero-2"),
        "zero-2/overflow": small("zero-2", **setting("check_grad_overflow", False)),
        "zero-3": small("zero-3"),
        "zero-3/leaves": small("zero-3", **setting("leaf_blocks", True)),
        "zero-3/linear": small("zero-3", **setting("memory_efficient_linear", False)),
        "zero-3/selective": small("zero-3", model__activation_checkpointing="selective"),
        "fsdp2-reshard": small("fsdp2-reshard"),
        "fsdp2-reshard/prefetch": small("fsdp2-reshard", **setting("prefetch_depth", 2)),
    }
    return train(tmp_path_factory.mktemp("settings"), specs)


def found(results: dict[str, Trained], name: str) -> dict[str, Any]:
    (first, second) = (rank.resolved["found"] for rank in results[name].ranks)
    assert first == second
    return dict(first)


@pytest.mark.parametrize(
    ("name", "key", "before", "after"),
    [
        ("zero-2/overflow", "check_grad_overflow", True, False),
        ("zero-3/leaves", "leaves", 0, SMALL["num_hidden_layers"]),
        ("zero-3/linear", "memory_efficient_linear", True, False),
        ("fsdp2-reshard/prefetch", "forward_prefetch", 0, 2),
        ("fsdp2-reshard/prefetch", "backward_prefetch", 0, 2),
    ],
)
def test_a_setting_reaches_the_engine(
    trained: dict[str, Trained], name: str, key: str, before: object, after: object
) -> None:
    base = name.partition("/")[0]
    assert (found(trained, base)[key], found(trained, name)[key]) == (before, after)
    assert trained[name].loss == pytest.approx(trained[base].loss, rel=TOLERANCE)


def test_zero_3_trains_alike_under_selective_checkpointing(trained: dict[str, Trained]) -> None:
    assert trained["zero-3/selective"].loss == pytest.approx(trained["zero-3"].loss, rel=TOLERANCE)


def test_a_number_of_ranks_keeps_parameters_nearby(tmp_path: Path) -> None:
    four = {"platform__world_size": 4, "engine__settings__reshard_after_forward": 2}
    specs = {"whole": small("fsdp2-reshard", platform__world_size=4), "near": small("fsdp2-reshard", **four)}
    results = train(tmp_path, specs, ranks=4)
    after = {name: result.ranks[0].resolved["found"]["reshard_after_forward_ranks"] for name, result in results.items()}
    assert after == {"whole": 4, "near": 2}
    assert results["near"].loss == pytest.approx(results["whole"].loss, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stage": 2, "memory_efficient_linear": False}, "at stage 3 only, found stage 2"),
        ({"stage": 3, "check_grad_overflow": False}, "at stage 1 or 2 only, found stage 3"),
        ({"stage": 0, "check_grad_overflow": False}, "at stage 1 or 2 only, found stage 0"),
        ({"stage": 1, "quantized_weights": True}, "at stage 3 only"),
    ],
)
def test_a_setting_without_effect_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        resolve_settings("zero", settings)


def test_later_settings_stay_out_of_the_hash() -> None:
    assert "check_grad_overflow" not in resolve_settings("zero", {"stage": 2})
    assert resolve_settings("zero", {"stage": 2, "check_grad_overflow": False})["check_grad_overflow"] is False
    assert resolve_settings("fsdp2", {})["reshard_after_forward"] is True


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        ("zero-3", {"quantized_weights": True}, "GPUs only"),
        ("zero-3", {"deepcompile": True}, "GPUs only"),
        ("fsdp2-reshard", {"reshard_after_forward": 2}, "found 2 on 2 ranks"),
        ("fsdp2-reshard", {"reshard_after_forward": 3}, "found 3 on 2 ranks"),
    ],
)
def test_a_setting_that_cannot_work_here_is_refused(config: str, changes: dict[str, Any], words: str) -> None:
    spec = small(config, **{f"engine__settings__{name}": value for name, value in changes.items()})
    with pytest.raises(SpecError, match=words):
        build_engine(Context(spec, 0, 2, torch.device("cpu")))


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("config", ["ddp", "fsdp2-reshard"])
def test_selective_checkpointing_repeats_no_matrix_product(alone: None, config: str) -> None:
    counts, losses, again = {}, {}, {}
    for how in (False, True, "selective"):
        spec = small(config, platform__world_size=1, model__activation_checkpointing=how)
        place = Context(spec, 0, 1, torch.device("cpu"))
        engine, calls = build_engine(place), []
        engine.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, seen=calls: seen.append(1))  # type: ignore[union-attr]
        loss = engine.forward(Tokens(place).draw(0, 0))
        with Products() as products:
            engine.backward(loss, last=True)
        counts[how], losses[how], again[how] = products.count, float(loss.detach()), len(calls)
    assert losses[True] == losses["selective"] == losses[False]
    assert again == {False: 1, True: 2, "selective": 2}, "the rest of the block is made again"
    assert counts["selective"] == counts[False] < counts[True]


def test_selective_checkpointing_refuses_compiled_blocks() -> None:
    with pytest.raises(SpecError, match="selective"):
        small("ddp", model__activation_checkpointing="selective", engine__settings__compile=True)


LIGER = """
import json, torch
from harness.engines.base import Context
from harness.engines.kernels import liger_modules
from harness.engines.model import build_meta_model
from tests.engines.test_settings import small
spec = small("ddp", platform__device="cuda", platform__world_size=1, model__kernels="liger")
print(json.dumps(liger_modules(build_meta_model(Context(spec, 0, 1, torch.device("cuda"))))))
"""


def test_liger_replaces_norms_and_mlps() -> None:
    # A process of its own: Liger exchanges classes for good.
    run = subprocess.run([sys.executable, "-c", LIGER], capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr
    layers = SMALL["num_hidden_layers"]
    assert json.loads(run.stdout) == {"LigerRMSNorm": 2 * layers + 1, "LigerSwiGLUMLP": layers}


def test_liger_on_a_cpu_is_refused_in_words() -> None:
    with pytest.raises(SpecError, match="'liger', whose kernels need a GPU"):
        small("ddp", model__kernels="liger")


def test_a_family_without_liger_kernels_is_refused() -> None:
    spec = small("ddp", platform__device="cuda", model__kernels="liger")
    with pytest.raises(SpecError, match="no kernels for model_type 'gpt2'"):
        use_liger(structs.replace(spec.model, config={"model_type": "gpt2"}))
