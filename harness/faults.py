"""Injected faults. Each makes a real failure happen on one rank, so that diagnosis is tested on real failures.

A run that carries a fault can never pass as a measurement: every fault says so on the rank's log, and
the supervisor flags its record.
"""

import ctypes
import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.contract.errors import SpecError
from harness.contract.spec import Fault, RunSpec
from harness.contract.units import GIB

if TYPE_CHECKING:
    import torch

Raiser = Callable[["Injector"], None]
_KINDS: dict[str, Raiser] = {}


def _kind(name: str) -> Callable[[Raiser], Raiser]:
    def register(raiser: Raiser) -> Raiser:
        if name in _KINDS:
            raise SpecError(f"fault {name!r}: declared twice")
        _KINDS[name] = raiser
        return raiser

    return register


class Injector:
    """This rank's faults; `strike` is called at the start of each phase."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self._faults = [f for f in spec.faults if f.rank == rank]
        self._hoard: list[Any] = []
        self._loss: torch.Tensor | None = None
        self.device_type: str = spec.platform.device
        self.world_size: int = spec.platform.world_size
        self.engine: Any = None
        self.loop: Any = None

    def attach(self, engine: Any, loop: Any) -> None:
        """Take the engine and the loop, because faults that corrupt the training change both. They are untyped here."""
        self.engine, self.loop = engine, loop

    def strike(self, step: int, phase: str, loss: "torch.Tensor | None" = None) -> "torch.Tensor | None":
        """Inject the faults of this step and phase; returns the loss to go on with."""
        self._loss = loss
        for fault in self._faults:
            # A fault in loading or set-up strikes before the first step, whatever step it names.
            if fault.phase == phase and (fault.step == step or step < 0):
                announce(fault)
                _KINDS[fault.kind](self)
        return self._loss


def kinds() -> tuple[str, ...]:
    """Every fault that can be injected."""
    return tuple(_KINDS)


def announce(fault: Fault) -> None:
    """Log that the failure which follows was injected."""
    print(f"FAULT INJECTED: {fault.kind} rank {fault.rank} step {fault.step} phase {fault.phase}", flush=True)


def _exhaust(injector: Injector) -> None:
    import torch

    if injector.device_type == "cuda":
        # Real allocations, in pieces, until the allocator gives up.
        while True:
            injector._hoard.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    # More than the address space of any machine: the allocator refuses without touching a page.
    injector._hoard.append(torch.empty(2**46, dtype=torch.float32))


@_kind("oom")
def _oom(injector: Injector) -> None:
    _exhaust(injector)


@_kind("swallowed_oom")
def _swallowed_oom(injector: Injector) -> None:
    """Run out of memory, catch the error and hang."""
    try:
        _exhaust(injector)
    except RuntimeError:
        _sleep(injector)


@_kind("sleep")
def _sleep(injector: Injector) -> None:
    while True:
        time.sleep(3600)


@_kind("spin")
def _spin(injector: Injector) -> None:
    while True:
        pass


@_kind("collective_mismatch")
def _collective_mismatch(injector: Injector) -> None:
    """Enter a collective that the other ranks never call."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device=injector.device_type))


@_kind("sigkill")
def _sigkill(injector: Injector) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@_kind("sigterm")
def _sigterm(injector: Injector) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@_kind("segfault")
def _segfault(injector: Injector) -> None:
    ctypes.string_at(0)


@_kind("key_error")
def _key_error(injector: Injector) -> None:
    {}["input_ids"]  # type: ignore[index]


@_kind("no_update")
def _no_update(injector: Injector) -> None:
    """Make the optimizer's step change nothing."""
    injector.engine._optimizer.step = lambda *_, **__: None


@_kind("learning_rate")
def _learning_rate(injector: Injector) -> None:
    """Use 1.5 times the spec's learning rate."""
    for group in injector.engine._optimizer.param_groups:
        group["lr"] *= 1.5


@_kind("summed_gradients")
def _summed_gradients(injector: Injector) -> None:
    """Multiply gradients by the number of ranks, as summing instead of averaging does."""
    backward, ranks = injector.engine.backward, injector.world_size
    injector.engine.backward = lambda loss, **options: backward(loss * ranks, **options)


@_kind("repeated_data")
def _repeated_data(injector: Injector) -> None:
    """Give this rank the batches of rank 0 from here on."""
    injector.loop.tokens.read_as(0)


@_kind("frozen_layer")
def _frozen_layer(injector: Injector) -> None:
    """Leave the second decoder block out of the optimizer."""
    frozen = {id(p) for name, p in injector.engine.model.named_parameters() if ".layers.1." in name}
    for group in injector.engine._optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in frozen]


@_kind("dropout")
def _dropout(injector: Injector) -> None:
    """Turn on attention dropout of 10%."""
    for module in injector.engine.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1


@_kind("nan_loss")
def _nan_loss(injector: Injector) -> None:
    if injector._loss is None:
        raise SpecError("faults: 'nan_loss' needs phase 'backward', where there is a loss")
    injector._loss = injector._loss * float("nan")


def _fill(path: Path) -> None:
    """Fill a file system through one file that is unlinked at once, so that the space comes back by itself."""
    with path.open("wb", buffering=0) as file:
        path.unlink()
        block = b"\0" * (1 << 20)
        while True:
            if file.write(block) != len(block):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@_kind("shm_full")
def _shm_full(injector: Injector) -> None:
    """Ask for more shared memory than /dev/shm has, as a data loader does."""
    path = Path(f"/dev/shm/harness-fault-{os.getpid()}")
    stat = os.statvfs("/dev/shm")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        # More than the whole file system: refused at once. Less would be reserved page by page until a machine whose
        # /dev/shm is as large as its memory has none left.
        os.posix_fallocate(descriptor, 0, stat.f_blocks * stat.f_frsize + GIB)
    except OSError as error:
        raise RuntimeError(f"unable to allocate shared memory(shm) for file <{path}>: {error}") from error
    finally:
        os.close(descriptor)
        path.unlink()


@_kind("disk_full")
def _disk_full(injector: Injector) -> None:
    """/dev/full answers every write as a full disk does."""
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"\0")


@_kind("port_in_use")
def _port_in_use(injector: Injector) -> None:
    """Start a second store on the rendezvous port."""
    from torch.distributed import TCPStore

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        TCPStore("127.0.0.1", held.getsockname()[1], is_master=True)


@_kind("missing_interface")
def _missing_interface(injector: Injector) -> None:
    """Name a network interface that the machine does not have, before the ranks meet."""
    for backend in ("GLOO", "NCCL"):
        os.environ[f"{backend}_SOCKET_IFNAME"] = "absent0"


@_kind("missing_module")
def _missing_module(injector: Injector) -> None:
    import absent_engine_extension  # type: ignore[import-not-found] # noqa: F401
