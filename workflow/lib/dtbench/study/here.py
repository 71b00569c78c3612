"""The platform `here`: this machine, as NVML and the operating system describe it."""

import os
import re
from collections.abc import Collection
from typing import Any

from harness.contract.errors import SpecError
from harness.contract.units import GB, GIB
from harness.measure.flops import card_of
from harness.measure.host import memory_gib
from harness.measure.nvml import list_gpus

HERE = "here"
CARDS = {"h100-sxm": "h100-80gb", "h100-pcie": "h100-80gb"}
"""Card by its peak FLOP/s -> card as platforms call it."""
MOST_CPU_RANKS = 2
"""Ranks on a machine without GPUs: enough to communicate; more would share the same cores."""


def this_machine() -> dict[str, Any]:
    """A platform entry without a name. Raises SpecError for a machine with cards of several kinds."""
    gpus = list_gpus()
    cores = len(os.sched_getaffinity(0))
    if not gpus:
        ranks = min(MOST_CPU_RANKS, cores)
        return {
            "device": "cpu",
            "world_size": ranks,
            "accelerator": "cpu",
            "interconnect": "loopback" if ranks > 1 else "none",
            "note": f"The machine that ran the study: no GPU, {cores} cores{_memory()}.",
        }
    names = sorted({gpu["name"] for gpu in gpus})
    if len(names) > 1:
        raise SpecError(
            f"{HERE}: found {' and '.join(names)}, expected one kind of card; show one with CUDA_VISIBLE_DEVICES"
        )
    linked = all(gpu["nvlink"] for gpu in gpus)
    size = f" ({gpus[0]['total_bytes'] / GB:.0f} GB each)" if gpus[0]["total_bytes"] else ""
    return {
        "device": "cuda",
        "world_size": len(gpus),
        "accelerator": _accelerator(names[0]),
        "interconnect": "none" if len(gpus) == 1 else "nvlink" if linked else "pcie",
        "note": f"The machine that ran the study: {len(gpus)} x {names[0]}{size}, {cores} cores{_memory()}.",
    }


def refuse_here(platforms: Collection[str], profile: str) -> None:
    """Refuse `here` for a profile that starts runs on other machines, which would read another `here`."""
    if HERE in platforms:
        raise SpecError(
            f"platforms: found `{HERE}` with --profile {profile}, whose runs start on other machines; name their "
            "platform (`dtbench init MODEL --gpu CARD --gpus N` writes one)"
        )


def _accelerator(device: str) -> str:
    card = card_of(device)
    if card is not None:
        return CARDS.get(card, card)
    return re.sub(r"[^a-z0-9]+", "-", device.lower().removeprefix("nvidia ")).strip("-")


def _memory() -> str:
    return f", {memory_gib() * GIB / GB:.0f} GB of host memory"
