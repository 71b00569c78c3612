"""What hardware a run needs, and how that hardware is bought: the first is measured, the second is only noted."""

import re
from typing import Any, Literal

from msgspec import Struct

from harness.contract.codec import LONGEST_NAME, Name, PositiveFloat, PositiveInt, canonical, digest, essence
from harness.contract.errors import SpecError


class Offer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a platform is bought. It is in spec and record, never in a hash: bought otherwise, a run is the same run."""

    machine_type: str | None = None
    """Cloud machine type, for example `a2-highgpu-4g`; null where there is none."""
    spot: bool = False
    """Whether GKE may serve it from Spot nodes."""
    zone: str | None = None
    """The one zone to use, for example `us-central1-a`; null: any zone of the cluster."""
    cpus: PositiveInt | None = None
    """CPU cores to request for the pod; null: leave it to the executor."""
    memory_gib: PositiveFloat | None = None
    """Host memory to request for the pod, in GiB."""
    slurm_gpu: str | None = None
    """The GPU's type in the site's Slurm, which `sinfo --format=%G` prints as `gpu:TYPE:COUNT`; null: any GPU."""
    price: str | None = None
    """Row of `config/prices.yaml`; null when the price is unknown."""

    @property
    def machine_gpus(self) -> int | None:
        """GPUs of one machine, where its type's name says so (a3-highgpu-8g); None for the others."""
        match = re.search(r"-(\d+)g$", self.machine_type or "")
        return int(match[1]) if match else None


class Platform(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the run needs from the world."""

    name: Name
    """Name of the platform, from config/platforms.yaml or the study."""
    device: Literal["cpu", "cuda"]
    """Where the ranks compute."""
    world_size: PositiveInt
    """Ranks on all nodes together, one per accelerator (or one per share of the CPU)."""
    nodes: PositiveInt = 1
    """Hosts that share the ranks equally; each runs its own supervisor."""
    accelerator: str
    """The field's name of the card: `a100-40gb`, `l4`, `h200`, `cpu`."""
    interconnect: str
    """What links the ranks: `nvlink`, `pcie`, `host-memory`, `loopback`; `none` of one rank."""
    gke_accelerator: str | None = None
    """Value of the node label `cloud.google.com/gke-accelerator`; null where there is none."""
    memory_cap_gib: PositiveFloat | None = None
    """Cap on the device allocator per rank, in GiB. Compute and bandwidth stay those of the whole card."""
    hashed_offer: Offer | None = None
    """The offer that is in the hashes of results stored before offers left them (December 2026). It keeps their paths
    and never changes; null for every newer platform."""

    def __post_init__(self) -> None:
        if self.world_size % self.nodes:
            raise SpecError(f"nodes: found {self.nodes}, expected a divisor of world_size {self.world_size}")

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one node."""
        return self.world_size // self.nodes

    @property
    def compute_class(self) -> str:
        """Name of its GKE ComputeClass: a legal label value, the same for the same platform and no other."""
        slug = f"dtbench-{self.name.replace('_', '-').replace('.', '-')}"
        plain = slug == f"dtbench-{self.name}" and len(slug) <= LONGEST_NAME
        return slug if plain else f"{slug[: LONGEST_NAME - 9].rstrip('-')}-{digest(self.name)[:8]}"


def hashed_text(platform: Platform) -> str | None:
    """Canonical JSON of a platform with `hashed_offer`, as hashes had it when it held the offer; None without one."""
    if platform.hashed_offer is None:
        return None
    plain: dict[str, Any] = essence(platform)
    return canonical(plain | plain.pop("hashed_offer"))


def with_offer(plain: Any) -> Any:
    """A spec's JSON with its offer beside its platform; specs stored before December 2026 have it inside."""
    platform = plain.get("platform") if isinstance(plain, dict) else None
    if not isinstance(platform, dict) or "offer" in plain:
        return plain
    inside = {name: platform[name] for name in Offer.__struct_fields__ if name in platform}
    if not inside:
        return plain
    rest = {name: value for name, value in platform.items() if name not in inside}
    hashed = {name: value for name, value in inside.items() if value not in (None, False)}
    return plain | {"platform": rest | ({"hashed_offer": hashed} if hashed else {}), "offer": inside}
