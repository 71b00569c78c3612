"""Whether the decoder blocks really ran compiled: torch.compile gives up in silence but for a warning in a log."""

import inspect
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

_RESUMED = "torch_dynamo_resume_in_forward"
"""What torch calls the rest of a forward pass behind a graph break."""


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
        # Code that torch made to resume behind a graph break has compiled versions of its own.
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
