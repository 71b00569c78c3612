"""The numbers of PyTorch's out-of-memory message, as real cards wrote it."""

from harness.contract.units import GIB
from harness.diagnosis.memory import read_shortage

CAPPED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 139.80 GiB "
    "of which 99.00 GiB is free. Including non-PyTorch memory, this process has 40.79 GiB memory in use. 40.00 GiB "
    "allowed; Of the allocated memory 37.49 GiB is allocated by PyTorch, and 1.54 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=..."
)


def test_free_memory_stops_at_the_cap() -> None:
    found = read_shortage(CAPPED)
    assert found.total == 40 * GIB
    assert found.sentence() == (
        "1.16 GiB asked, 993.28 MiB free of 40.00 GiB, 37.49 GiB allocated, 1.54 GiB reserved but unallocated"
    )
    assert not found.fragmented
