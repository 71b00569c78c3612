"""Names of dtypes to torch dtypes and back."""

import torch

from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def dtype(name: str) -> torch.dtype:
    """The torch dtype of a spec's dtype name. Raises SpecError for float16, which needs loss scaling."""
    if name not in DTYPES:
        raise SpecError(f"numerics: found {name!r}, expected one of {', '.join(DTYPES)}; no engine here scales losses")
    return DTYPES[name]


def dtype_name(value: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(value).removeprefix("torch.")


def require(spec: RunSpec, **allowed: tuple[str, ...]) -> None:
    """Refuse numerics that an engine cannot give. Raises SpecError naming the role."""
    for role, names in allowed.items():
        found = getattr(spec.numerics, role)
        if found not in names:
            raise SpecError(
                f"numerics.{role}: found {found!r}, engine {spec.engine.name!r} gives {' or '.join(names)} here"
            )
