"""What the host's memory, shared memory and disks say, and how native code dies."""

from harness.diagnosis.signature import Tier, cause, entry

# fmt: off
HOST = (
    cause("shm_exhausted", "shm", ("shared memory", "/dev/shm", "unable to write to file", "unable to mmap", "bus error"),
          r"out of shared memory|insufficient shared memory|shared memory object.*(?:No space left|Cannot allocate)"
          r"|unable to write to file </torch|/dev/shm.*(?:No space left|size \d+)|(?:No space left|Errno 28).*/dev/shm"
          r"|creating shared memory segment|shared memory segment.*fail|killed by signal: Bus error"
          r"|unable to mmap \d+ bytes from file <(?:filename not specified|/torch)"),
    cause("shm_exhausted", "sigbus", ("bus error", "sigbus", "signal "),
          r"\bBus error\b|\bSIGBUS\b|Signal: Bus error", "medium"),
    cause("host_oom", "cpu-alloc", ("defaultcpuallocator", "memoryerror", "bad_alloc", "cannot allocate memory", "unable to allocate"),
          r"DefaultCPUAllocator: (?:can't|not enough)|\bMemoryError\b|std::bad_alloc|Errno 12\b|Cannot allocate memory"
          r"|_ArrayMemoryError"),
    cause("host_oom", "worker-killed", "killed by signal", r"DataLoader worker \(pid\(?s?\)? .*killed by signal: Killed"),
    cause("disk_full", "no-space", ("no space left", "quota exceeded", "storagefull", "disk full", "errno"),
          r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]|StorageFull|\bos error 28\b"),
    cause("disk_full", "writer", ("inline_container", "pytorchstreamwriter"),
          r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] ?\.? ?(?:unexpected pos|.*file write failed)", "medium"),
    cause("segfault", "segv", ("segmentation fault", "sigsegv", "segfault", "signal: aborted", "fatal python error"),
          r"[Ss]egmentation [Ff]ault|\bSIGSEGV\b|\bsegfault at\b|Fatal Python error: (?!Aborted)"),
    cause("segfault", "heap", ("double free", "invalid pointer", "corrupted", "malloc", "free()", "stack smashing", "illegal instruction"),
          r"double free or corruption|free\(\): invalid|corrupted (?:size|double-linked|unsorted)|malloc\(\): \w"
          r"|malloc_consolidate|munmap_chunk|stack smashing detected|[Ii]llegal instruction"),
    entry(Tier.HINT, "segfault", "abort", ("fatal python error", "sigabrt", "terminate called", "core dumped"),
          r"Fatal Python error: Aborted|terminate called (?:after throwing|without)|Aborted \(core dumped\)", "medium"),
)
