"""Byte and time units: GiB is 2**30 bytes, GB is 10**9 bytes."""

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element, by the dtype's torch name without the `torch.` prefix."""
