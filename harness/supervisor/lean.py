"""Start a launcher and import only what it uses: `python -m harness.supervisor.lean MODULE ARGUMENTS...`.

The launcher is the real one: its `main` is called as its own command calls it. Before the ranks start it imports all of
PyTorch and DeepSpeed, and at its end the interpreter frees all of that again. Two bare ranks under a launcher, on two
quiet shared cores (2026-12, Python 3.11.7, PyTorch 2.13.0, DeepSpeed 0.19.8, median of 5):

    torchrun               3.2 s of CPU time and 3.6 s of wall time; with this module 1.8 s and 2.0 s
    DeepSpeed's launcher   4.0 s of CPU time and 6.6 s of wall time; with this module 1.9 s and 1.8 s

This module exists because it saves each run more than a second. A release with another layout is imported as a whole.
Then tests/supervisor/test_lean.py fails and shows that the gain is lost. Patched: torch's `_meta_registrations` is left
out, DeepSpeed's two `__init__` files are not run, and its launcher stops sleeping when its last rank ends.
"""

import contextlib
import gc
import importlib
import importlib.util
import os
import select
import sys
import time
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from typing import Any, NoReturn

from harness.process import leave

TORCHRUN = "torch.distributed.run"
DEEPSPEED = "deepspeed.launcher.launch"


def _bare(name: str, *sources: str) -> types.ModuleType:
    """A package at the real one's path, without running its `__init__`; names come from its modules `sources`.

    Raises ImportError when there is no such package.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"no package {name}", name=name)
    package = types.ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    package.__package__ = name

    def lend(attribute: str) -> Any:
        for source in sources:
            module = importlib.import_module(f"{name}.{source}")
            if hasattr(module, attribute):
                return getattr(module, attribute)
        raise AttributeError(f"module {name!r} has no attribute {attribute!r} without its __init__")

    package.__dict__["__getattr__"] = lend
    return package


class _Unloaded(types.ModuleType):
    """A module that has a `__version__` and imports the real module when any other attribute is read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.find_spec(name)
        self.__version__ = version(name)

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


def _trim_torchrun() -> None:
    # `_meta_registrations` holds kernels for tensors without data. The launcher has no tensors.
    sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")


def _trim_deepspeed() -> None:
    # Of DeepSpeed the launcher uses a constant, a logger and the name of the variable that shows a rank its device.
    sys.modules["torch"] = _Unloaded("torch")
    sys.modules["deepspeed"] = _bare("deepspeed")
    # Look the name up only now, because the sources themselves import the package.
    sys.modules["deepspeed.utils"] = _bare("deepspeed.utils", "logging", "numa")


_TRIMS: dict[str, Callable[[], None]] = {TORCHRUN: _trim_torchrun, DEEPSPEED: _trim_deepspeed}


@contextlib.contextmanager
def _restored_on_failure() -> Iterator[None]:
    known = set(sys.modules)
    try:
        yield
    except Exception as error:
        for name in set(sys.modules) - known:
            del sys.modules[name]
        print(f"{type(error).__name__}: {error}; the launcher is imported as a whole", file=sys.stderr, flush=True)


def load(module: str) -> types.ModuleType:
    """Import a launcher, trimmed when that works. Raises ImportError when it cannot be imported at all."""
    with _restored_on_failure():
        _TRIMS[module]()
        return importlib.import_module(module)
    return importlib.import_module(module)


def wait_for_all(seconds: float) -> None:
    """Sleep, but return as soon as every child has ended, so that the launcher reacts at once.

    While a child runs, the sleep keeps its full length, so the other ranks have as much time to end as before.
    """
    import psutil

    end_s = time.monotonic() + seconds
    with contextlib.ExitStack() as opened:
        waiting = []
        for child in psutil.Process().children():
            with contextlib.suppress(ProcessLookupError):
                waiting.append(os.pidfd_open(child.pid))
                opened.callback(os.close, waiting[-1])
        while waiting and (left_s := end_s - time.monotonic()) > 0:
            ended, _, _ = select.select(waiting, [], [], left_s)
            waiting = [descriptor for descriptor in waiting if descriptor not in ended]


class _Clock:
    """Stands in for the module `time` in DeepSpeed's launcher, which sleeps a second between two looks at its ranks."""

    sleep = staticmethod(wait_for_all)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def main() -> NoReturn:
    """Run the launcher that the command line names and end as it does, without taking the interpreter down."""
    gc.disable()
    del sys.argv[0]
    module = load(sys.argv[0])
    if sys.argv[0] == DEEPSPEED:
        module.__dict__["time"] = _Clock()
    code = 0
    try:
        module.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    leave(code)


if __name__ == "__main__":
    main()
