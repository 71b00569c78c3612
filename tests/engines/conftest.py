"""One process group of two ranks trains every variant that the tests look at; it is started once a session."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.contract.codec import decode_file, encode
from harness.contract.engines import CONFIGS
from harness.contract.measured import RankResult
from harness.contract.spec import RunSpec
from harness.supervisor.extensions import extensions_folder, path_with_environment
from tests.engines.specs import SMALL, make_spec
from tests.engines.toys import families

EXPERTS = families()["mixtral"]
"""The Hub's checkpoints of this family have one tensor for each expert, under other names."""
ROOT = Path(__file__).resolve().parents[2]
STEPS = {"protocol__warmup_steps": 4, "protocol__timed_steps": 1, "data__sequence_length": 16}
FLOAT32 = dict.fromkeys(("parameter", "compute", "master", "optimizer_state", "reduce", "accumulate"), "float32")
SHARDINGS = ("ddp", "fsdp2-reshard", "zero-2", "zero-3")
"""One config of each way to shard."""
WRONG = ("no_update", "learning_rate", "summed_gradients", "repeated_data", "frozen_layer", "dropout")
"""Faults of a training that runs through and is another than its spec says."""
WRAPPERS = ("ddp", "fsdp2-reshard", "zero-3")
"""One config of each engine."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What both ranks left behind, or why they could not."""

    ranks: list[RankResult]
    parity: list[str]
    expected_loss: float | None = None
    """First loss by transformers itself, where weights came from a checkpoint."""

    @property
    def loss(self) -> list[float]:
        """Mean over ranks, step by step."""
        return [sum(step) / len(step) for step in zip(*(r.loss for r in self.ranks), strict=True)]


def torchrun(*arguments: str, timeout_s: float = 1500, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a module on ranks of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        "--master-port",
        str(port),
    ]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        # The environment's own operators, as the supervisor sets it. PATH, because another ninja (a system's)
        # has another digest of the same command line, and compiles all of them again.
        env=os.environ
        | {
            "OMP_NUM_THREADS": "1",
            "TORCH_EXTENSIONS_DIR": str(extensions_folder()),
            "PATH": path_with_environment(),
        },
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def variants(checkpoint: Path) -> dict[str, RunSpec]:
    """Every spec the session trains, by name."""
    small = {"model__config": SMALL, **STEPS}
    specs = {
        f"{arm}/{config}": make_spec(config, arm, **small) for arm in ("matched", "defaults") for config in CONFIGS
    }
    for config in SHARDINGS:
        specs[f"float32/{config}"] = make_spec(config, **small, numerics=FLOAT32)
        specs[f"accumulate/{config}"] = make_spec(config, **small, data__gradient_accumulation=2)
    for config in WRAPPERS:
        # A large epsilon makes Adam feel the scale of the gradient, which it otherwise divides out.
        specs[f"clip/{config}"] = make_spec(config, **small, optimizer__clip_norm=0.01, optimizer__epsilon=0.1)
        specs[f"no-clip/{config}"] = make_spec(config, **small, optimizer__clip_norm=0.0, optimizer__epsilon=0.1)
        specs[f"checkpointing/{config}"] = make_spec(config, **small, model__activation_checkpointing=True)
        specs[f"reduce-bf16/{config}"] = make_spec(config, **small, numerics__reduce="bfloat16")
        for name, model in (("pretrained", SMALL), ("pretrained-experts", EXPERTS)):
            pretrained = {"model__weights": "pretrained", "model__pretrained": str(checkpoint / name)}
            specs[f"{name}/{config}"] = make_spec(config, **small | pretrained | {"model__config": model})
    specs |= gated()
    specs["micro-batch/ddp"] = make_spec("ddp", **small, data__micro_batch=3)
    specs["foreach/ddp"] = make_spec("ddp", **small, optimizer__implementation="torch-foreach")
    specs["eager/ddp"] = make_spec("ddp", **small, model__attention="eager")
    specs["groups/fsdp2-reshard"] = make_spec("fsdp2-reshard", **small, engine__settings__blocks_per_group=2)
    specs["prefetch/fsdp2-reshard"] = make_spec("fsdp2-reshard", **small, engine__settings__prefetch_depth=2)
    specs["two-nodes/fsdp2-hsdp"] = make_spec("fsdp2-hsdp", **small, platform__nodes=2)
    specs["leaves/zero-3"] = make_spec("zero-3", **small, engine__settings__leaf_blocks=True)
    specs["sharded-small/zero-3"] = make_spec("zero-3", **small, engine__settings__param_persistence_threshold=0)
    specs["offload/zero-2"] = make_spec("zero-2", **small, engine__settings__offload_optimizer=True)
    return specs


def gated() -> dict[str, RunSpec]:
    """A reference on structured data, first by name, runs that are held against it, and one for each wrong training."""
    shared = {"model__config": SMALL, **STEPS, "protocol__warmup_steps": 10, "data__tokens": "structured"}
    specs = {"gate/0": make_spec("ddp", **shared | {"protocol__timed_steps": 30}, identity__reference=True)}
    specs |= {f"gate/{config}": make_spec(config, **shared) for config in CONFIGS}
    for config in ("zero-2", "zero-3", "zero-3-offload"):
        specs[f"gate/float32/{config}"] = make_spec(config, **shared, numerics__accumulate="float32")
    for kind in WRONG:
        ranks = (1,) if kind == "repeated_data" else (0, 1)
        faults = [{"kind": kind, "rank": rank, "step": 0, "phase": "forward"} for rank in ranks]
        specs[f"gate/{kind}"] = make_spec("ddp", **shared, faults=faults)
    return specs


def save_checkpoints(folder: Path) -> dict[str, float]:
    """Checkpoints as the Hub has them, of weights that no seed of ours draws; name -> first loss over both ranks."""
    import torch

    from harness.engines.base import Context
    from harness.engines.imports import import_causal_lm
    from harness.engines.loop import Tokens

    losses = {}
    for name, plain in (("pretrained", SMALL), ("pretrained-experts", EXPERTS)):
        torch.manual_seed(1234)
        classes = import_causal_lm(plain["model_type"])
        assert classes is not None
        config_class, model_class = classes
        config = config_class(**{k: v for k, v in plain.items() if k != "model_type"})
        model = model_class(config).to(torch.bfloat16)  # type: ignore[attr-defined]
        model.save_pretrained(folder / name)
        spec = make_spec("ddp", model__config=plain, **STEPS)
        tokens = [Tokens(Context(spec, rank, 2, torch.device("cpu"))).draw(0, 0) for rank in range(2)]
        losses[name] = sum(float(model(input_ids=t, labels=t).loss.detach()) for t in tokens) / 2
    return losses


def train(folder: Path, specs: dict[str, RunSpec], ranks: int = 2) -> dict[str, Trained]:
    """Train the specs below `folder` one after the other in one process group; results by name."""
    for name, spec in specs.items():
        place = folder / name.replace("/", "-")
        place.mkdir()
        (place / "spec.json").write_text(json.dumps(encode(spec)))
    finished = torchrun("-m", "tests.engines.many", str(folder), ranks=ranks)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
    results = {}
    for name in specs:
        place = folder / name.replace("/", "-")
        errors = [p.read_text() for p in sorted(place.glob("error-*.txt"))]
        assert not errors, f"{name}: {errors[0]}"
        found = [decode_file(RankResult, place / f"result-{rank}.json") for rank in range(ranks)]
        results[name] = Trained(found, json.loads((place / "parity-0.json").read_text()))
    return results


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Results of every variant by name."""
    folder, checkpoints = tmp_path_factory.mktemp("trained"), tmp_path_factory.mktemp("checkpoints")
    losses = save_checkpoints(checkpoints)
    results = train(folder, variants(checkpoints))
    return {
        name: dataclasses.replace(run, expected_loss=losses.get(name.split("/")[0])) for name, run in results.items()
    }
