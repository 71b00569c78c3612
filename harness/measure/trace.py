"""What is read from a training besides losses: how far parameters move, first outputs, which experts get tokens, and
whether the decoder blocks really ran compiled. When torch.compile gives up, it only writes a warning to a log.
"""

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

SAMPLE = 2**20
"""How many elements of a model are sampled, evenly spread. A copy of all would not fit beside a large model."""
REST = "embedding, last norm and head"
"""The parameters outside the blocks, as one module, because a bfloat16 norm weight near 1 may not move in ten steps."""

Parts = Callable[[], Iterator[tuple[str, torch.Tensor]]]
"""This rank's own part of every parameter that trains, by its name."""


class Movement:
    """Remembers a sample of the parameters, to tell later how far they have moved."""

    def __init__(self, parts: Parts, blocks: list[str], parameters: int, device: torch.device) -> None:
        self._parts, self._device = parts, device
        self._stride = max(1, parameters // SAMPLE)
        self._modules = [*blocks, REST]
        self._before = {name: self._sample(part) for name, part in parts()}

    def _sample(self, part: torch.Tensor) -> torch.Tensor:
        return part.detach().flatten()[:: self._stride].to(torch.float32, copy=True)

    def distances(self) -> dict[str, float]:
        """Module -> mean distance of its sampled parameters from where they were, over all ranks; synchronizes."""
        sums = torch.zeros(len(self._modules), 2, dtype=torch.float64)
        for name, part in self._parts():
            moved = (self._sample(part) - self._before[name]).abs()
            sums[self._index(name)] += torch.tensor([float(moved.sum()), moved.numel()], dtype=torch.float64)
        # Frozen parameters are not sampled: a module of them alone counts as one that does not move.
        sums = sums.to(self._device)
        dist.all_reduce(sums)
        return {
            module: total / count if count else 0.0
            for module, (total, count) in zip(self._modules, sums.tolist(), strict=True)
        }

    def _index(self, name: str) -> int:
        inside = (i for i, module in enumerate(self._modules) if name.startswith(module + "."))
        return next(inside, len(self._modules) - 1)


class Hooked(ABC):
    """Watches modules, by name, while it is open."""

    def __init__(self, modules: Mapping[str, nn.Module], device: torch.device) -> None:
        self._modules, self._device = modules, device
        self._hooks: list[Any] = []

    @abstractmethod
    def attach(self, name: str, module: nn.Module) -> Any:
        """Register the hook of one module and return its handle."""

    def __enter__(self) -> Self:
        self._hooks = [self.attach(name, module) for name, module in self._modules.items()]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()


class Routing(Hooked):
    """Counts the tokens that each block's experts get. `modules` are the experts of each block, by the block's name."""

    def __init__(self, modules: Mapping[str, nn.Module], device: torch.device) -> None:
        super().__init__(modules, device)
        self._counts: dict[str, torch.Tensor] = {}

    def attach(self, name: str, module: nn.Module) -> Any:
        def note(experts: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            # In every family the experts get the router's indices. The weights beside them are floats, so dtype tells
            # them apart.
            tensors = (t for t in (*inputs, *named.values()) if torch.is_tensor(t))
            chosen = next((t for t in tensors if t.dtype in (torch.int64, torch.int32)), None)
            held = getattr(experts, "num_experts", None)
            if chosen is not None and isinstance(held, int):
                counts = torch.bincount(chosen.flatten().long(), minlength=held)[:held]
                self._counts[name] = self._counts.get(name, 0) + counts

        return module.register_forward_pre_hook(note, with_kwargs=True)

    def busiest(self) -> dict[str, float]:
        """Block -> tokens of its busiest expert over the mean of its experts, over all ranks; 1 is even balance."""
        found = {}
        for name, counts in self._counts.items():
            everywhere = counts.to(self._device, torch.float64)
            dist.all_reduce(everywhere)
            found[name] = float(everywhere.max() / everywhere.mean())
        return found


class Outputs(Hooked):
    """Notes the mean magnitude of each module's first output while it is open."""

    def __init__(self, modules: Mapping[str, nn.Module], device: torch.device) -> None:
        super().__init__(modules, device)
        self._means: dict[str, torch.Tensor] = {}

    def attach(self, name: str, module: nn.Module) -> Any:
        def note(_: nn.Module, __: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            if name not in self._means:
                # A norm, not a mean of absolute values, because it needs no copy as large as the output.
                size = torch.linalg.vector_norm(tensor.detach(), ord=1, dtype=torch.float32)
                self._means[name] = size / tensor.numel()

        return module.register_forward_hook(note)

    def means(self) -> dict[str, float]:
        """Module -> mean magnitude of its output over all ranks, in the order of the forward pass; synchronizes."""
        if not self._means:
            return {}
        stacked = torch.stack(list(self._means.values())).to(self._device, torch.float64)
        dist.all_reduce(stacked)
        return dict(zip(self._means, (stacked / dist.get_world_size()).tolist(), strict=True))


_RESUMED = "torch_dynamo_resume_in_forward"
"""Prefix of torch's name for the rest of a forward pass after a graph break."""


class CompiledBlocks:
    """Watches one step for blocks whose forward pass, or a part of it, runs as plain Python.

    A compiled function runs code that torch generated, so the interpreter meets the module's own code only where there
    is no compiled version for this block: after `recompile_limit` versions, or where compiling failed. Watching slows
    the step down; nothing is hooked into the modules, because that alone would make torch compile them again.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = {id(block) for block in blocks}
        self._codes = {inspect.unwrap(type(block).forward).__code__ for block in blocks}
        self._plain: set[int] = set()
        self._ran: bool = False

    def __enter__(self) -> "CompiledBlocks":
        self._ran = True
        sys.setprofile(self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        # Code with which torch resumes after a graph break has compiled versions of its own.
        if code in self._codes or (code.co_name.startswith(_RESUMED) and _debug_get_cache_entry_list(code)):
            self._plain.add(self._block_of(frame))

    def _block_of(self, frame: FrameType | None) -> int:
        while frame is not None:
            owner = id(frame.f_locals.get("self"))
            if owner in self._blocks:
                return owner
            frame = frame.f_back
        return 0

    @property
    def share(self) -> float | None:
        """Blocks that ran compiled over all blocks; None when no step was watched."""
        if not self._ran:
            return None
        return 1 - len(self._plain & self._blocks) / len(self._blocks)
