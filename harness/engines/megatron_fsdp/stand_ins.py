"""Stand-ins for the CUDA streams that megatron-fsdp needs, so that its training can be tested on CPU ranks.

megatron-fsdp schedules its copies and collectives on CUDA streams. On a CPU everything happens in the order of the
calls, so a stream has nothing to do. The speed of such a run means nothing.
"""

import contextlib
from typing import Any

import torch


class Stream:
    """A stream and its events; all work on it has already been done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record_event(self, *_: Any) -> "Stream":
        return self

    def wait(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = synchronize = record = wait


def stand_in_for_cuda() -> None:
    """Replace torch's CUDA streams by `Stream`, for the rest of this process."""
    torch.cuda.Stream = torch.cuda.Event = Stream  # type: ignore[misc, assignment]
    torch.cuda.current_stream = torch.cuda.default_stream = Stream  # type: ignore[assignment]
    torch.cuda.stream = lambda _: contextlib.nullcontext()  # type: ignore[assignment, misc]
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.current_device = lambda: 0
