"""Specs and Jobs for the tests, as small as the contract allows."""

from typing import Any

from snakemake_executor_plugin_gke.settings import ExecutorSettings

from harness.contract.codec import encode
from harness.contract.engines import ENGINES, resolve_settings
from harness.contract.spec import RunSpec, parse_spec

IMAGE = f"us-docker.pkg.dev/project/bench/harness@sha256:{'0' * 64}"


def make_spec(study: str = "quick", config: str = "ddp", attempt: int = 1, repeat: int = 1, **changes: Any) -> RunSpec:
    """A spec for four L4s on Spot; keywords change its platform or its offer."""
    offer = {"machine_type": "g2-standard-48", "spot": True, "cpus": 40, "memory_gib": 160}
    bought = {name: changes.pop(name) for name in [*offer, "zone"] if name in changes}
    plain = {
        "spec_version": 1,
        "identity": {"study": study, "config": config, "arm": "defaults", "repeat": repeat, "attempt": attempt},
        "platform": {
            "name": "l4-x4",
            "device": "cuda",
            "world_size": 4,
            "accelerator": "l4",
            "interconnect": "pcie",
            "gke_accelerator": "nvidia-l4",
        }
        | changes,
        "offer": offer | bought,
        "model": {"name": "tiny", "config": {"model_type": "qwen2"}},
        "data": {"sequence_length": 16, "micro_batch": 1},
        "optimizer": {"implementation": "torch-fused"},
        "numerics": encode(ENGINES["ddp"].shipped),
        "protocol": {"warmup_steps": 1, "timed_steps": 2},
        "engine": {"name": "ddp", "launcher": "torchrun", "settings": resolve_settings("ddp", {})},
        "environment": {},
    }
    return parse_spec(plain)


def make_settings(**changes: Any) -> ExecutorSettings:
    """Settings that pass their check."""
    return ExecutorSettings(**({"image": IMAGE, "bucket": "gs://bench/prefix"} | changes))
