"""Engine name to builder. The only place that knows which engines exist; each is imported when it is built."""

from collections.abc import Callable
from importlib import import_module

from harness.contract.codec import nearest
from harness.contract.errors import SpecError
from harness.engines.base import Context, Engine

Builder = Callable[[Context], Engine]

_BUILDERS: dict[str, str] = {}


def register(name: str, target: str) -> None:
    """Declare an engine as `module:callable`. Raises SpecError when the name is taken."""
    if name in _BUILDERS:
        raise SpecError(f"engine {name!r}: registered twice, as {_BUILDERS[name]} and {target}; rename one")
    _BUILDERS[name] = target


def names() -> tuple[str, ...]:
    """Every registered engine."""
    return tuple(_BUILDERS)


def import_engine(name: str) -> Builder:
    """Import the module of an engine and hand over its builder. Raises SpecError for an unknown one."""
    if name not in _BUILDERS:
        raise SpecError(f"engine.name: found {name!r}; {nearest(name, names())}")
    module, _, attribute = _BUILDERS[name].partition(":")
    builder: Builder = getattr(import_module(module), attribute)
    return builder


def build_engine(context: Context) -> Engine:
    """Import and build the engine that the spec names. Raises SpecError for an unknown one."""
    return import_engine(context.spec.engine.name)(context)


register("ddp", "harness.engines.ddp:build")
register("fsdp2", "harness.engines.fsdp2:build")
register("zero", "harness.engines.zero:build")
