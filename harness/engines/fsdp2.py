"""FSDP2: torch.distributed.fsdp.fully_shard on groups of decoder blocks and on the root."""

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from harness.contract.codec import decode
from harness.contract.engines.fsdp2 import FsdpSettings
from harness.contract.errors import SpecError
from harness.engines.base import Context, dtype
from harness.engines.model import Weights, compile_parts, decoder_blocks
from harness.engines.torch_engine import TorchEngine

_EXPERTS_DIMENSIONS = 3


class FsdpEngine(TorchEngine):
    """Parameters, gradients and optimizer state sharded along dimension 0 of each parameter.

    Every micro-step reduces: what stays between them is a shard, as with ZeRO-2 and ZeRO-3.
    """

    def __init__(self, context: Context) -> None:
        self._settings = decode(FsdpSettings, context.spec.engine.settings, "engine.settings")
        platform = context.spec.platform
        sharing = platform.ranks_per_node if self._settings.replicate_nodes else platform.world_size
        _check_group(self._settings.reshard_after_forward, sharing)
        # Pinning serves copies to a GPU; without one there is nothing to pin for.
        self._pins = self._settings.pin_memory and context.device.type == "cuda"
        super().__init__(context)

    def wrap(self, context: Context) -> nn.Module:
        numerics, settings = self._spec.numerics, self._settings
        platform = self._spec.platform
        if settings.replicate_nodes:
            # Ranks of one node follow each other, so the inner dimension is a node.
            shape, names = (platform.nodes, platform.ranks_per_node), ("replicate", "shard")
        else:
            shape, names = (context.world_size,), ("shard",)
        mesh = init_device_mesh(context.device.type, shape, mesh_dim_names=names)
        # Both dtypes are always explicit: what None means for reduce_dtype has changed between releases.
        policy = MixedPrecisionPolicy(
            param_dtype=dtype(numerics.compute) if self._casts else None, reduce_dtype=dtype(numerics.reduce)
        )
        offload = CPUOffloadPolicy(pin_memory=self._pins) if settings.offload else OffloadPolicy()
        weights = Weights(context, self.model)
        blocks = decoder_blocks(self.model)
        if settings.compile:
            compile_parts(self.model, blocks)
        shards = mesh.size(mesh.ndim - 1)
        groups = [blocks[i : i + settings.blocks_per_group] for i in range(0, len(blocks), settings.blocks_per_group)]
        for group in groups:
            for block in group:
                weights.materialize(block)
            fully_shard(
                group if len(group) > 1 else group[0],
                mesh=mesh,
                mp_policy=policy,
                offload_policy=offload,
                reshard_after_forward=settings.reshard_after_forward,
                shard_placement_fn=lambda p: _placement(p, shards),
            )
        weights.materialize(self.model)
        # The root's own unit (embedding, norm, head) is the first of backward: freeing it between would
        # only gather it again at once.
        fully_shard(self.model, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=False)
        _prefetch([group[0] for group in groups], settings.prefetch_depth)
        return self.model

    def resolved(self) -> dict[str, object]:
        numerics, settings = self._spec.numerics, self._settings
        return {
            "units": f"{settings.blocks_per_group} block(s) per group, then the root",
            "reshard_after_forward": settings.reshard_after_forward,
            "root_reshard_after_forward": False,
            "mp_policy": {
                "param_dtype": numerics.compute if self._casts else None,
                "reduce_dtype": numerics.reduce,
                "output_dtype": None,
                "cast_forward_inputs": True,
            },
            "offload_policy": {"cpu": settings.offload, "pin_memory": settings.offload and self._pins},
            "mesh": {"replicate": self._spec.platform.nodes} if settings.replicate_nodes else {},
            "prefetch_depth": settings.prefetch_depth,
            "compile": settings.compile,
            "found": _found(decoder_blocks(self.model)),
        }


def _placement(parameter: nn.Parameter, shards: int) -> Shard | None:
    """Experts lie in one tensor [experts, ...], which is cut between experts; None is that, dimension 0.

    Where that leaves ranks with fewer experts than others or none, every expert is cut instead.
    """
    if parameter.dim() < _EXPERTS_DIMENSIONS or parameter.shape[0] % shards == 0:
        return None
    return next((Shard(d) for d in range(1, parameter.dim()) if parameter.shape[d] % shards == 0), None)


def _check_group(group: bool | int, ranks: int) -> None:
    """Refuse a number of ranks that torch would take for true or false, or cannot form."""
    if not isinstance(group, bool) and (ranks % group or not 1 < group < ranks):
        raise SpecError(
            f"engine.settings.reshard_after_forward: found {group} on {ranks} ranks that shard; expected true, "
            "false or a divisor between 1 and that number"
        )


def _found(blocks: list[nn.Module]) -> dict[str, object]:
    """What torch's own state says of the first decoder block."""
    state = blocks[0]._get_fsdp_state()  # type: ignore[operator]
    group = state._fsdp_param_group
    after = group.post_forward_mesh_info
    return {
        "forward_prefetch": len(state._states_to_forward_prefetch),
        "backward_prefetch": max(len(b._get_fsdp_state()._states_to_backward_prefetch) for b in blocks),  # type: ignore[operator]
        "reshard_after_forward_ranks": None if after is None else after.shard_mesh_size,
    }


def _prefetch(units: list[nn.Module], depth: int) -> None:
    if depth == 0:
        return
    for index, unit in enumerate(units):
        ahead, behind = units[index + 1 : index + 1 + depth], units[max(0, index - depth) : index]
        if ahead:
            unit.set_modules_to_forward_prefetch(ahead)  # type: ignore[operator]
        if behind:
            unit.set_modules_to_backward_prefetch(behind[::-1])  # type: ignore[operator]


build = FsdpEngine
