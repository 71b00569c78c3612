"""The GKE platforms of config/platforms.yaml: their pods fit on the nodes that GKE makes of their machine types."""

from pathlib import Path

import pytest
from dtbench.study.platforms import load_platforms

ROOT = Path(__file__).resolve().parents[2]
ON_GKE = {n: e for n, e in load_platforms(ROOT / "config" / "platforms.yaml").items() if e.gke_accelerator}
MACHINES = {
    "a2-highgpu-4g": (48, 340),
    "a2-ultragpu-4g": (48, 680),
    "a3-highgpu-8g": (208, 1872),
    "a3-ultragpu-8g": (224, 2952),
    "a4-highgpu-8g": (224, 3968),
    "g2-standard-48": (48, 192),
}
"""vCPUs and GiB, https://cloud.google.com/compute/docs/gpus."""
EVICTION_GIB, OWN_PODS_GIB, OWN_PODS_CPUS = 0.1, 2.0, 2.0


def reserved_gib(memory_gib):
    """What GKE keeps of a node's memory: shares of its parts, the smaller parts first."""
    reserved = 0.0
    for part_gib, share in ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (float("inf"), 0.02)):
        reserved += min(part_gib, memory_gib) * share
        memory_gib -= min(part_gib, memory_gib)
    return reserved


@pytest.mark.parametrize("name", ON_GKE)
def test_a_pod_leaves_room_on_its_node(name):
    entry = ON_GKE[name]
    cpus, memory_gib = MACHINES[entry.machine_type]
    # The kernel sees about 2% less than the machine type's name says.
    free_gib = memory_gib * 0.98 - reserved_gib(memory_gib) - EVICTION_GIB - OWN_PODS_GIB
    assert 0.8 * memory_gib < entry.memory_gib < free_gib
    assert 0.8 * cpus < entry.cpus <= cpus - OWN_PODS_CPUS
    assert entry.cpus % entry.world_size == 0, "every rank gets the same number of threads"


@pytest.mark.parametrize("name", ON_GKE)
def test_a_platform_fills_its_machine_type(name):
    # The machine type implies the number of GPUs, and no other run shares the host.
    machine = ON_GKE[name].machine_type
    assert ON_GKE[name].world_size == {"g2-standard-48": 4}.get(machine, int(machine[-2]))
