"""What the host's memory, shared memory and disks say, and how native code dies."""

from harness.diagnosis.signatures.signature import Tier, cause, entry

# fmt: off
HOST = (
    cause("shm_exhausted", "shm",
          r"out of shared memory|insufficient shared memory|shared memory object.{0,300}(?:No space left"
          r"|Cannot allocate)"
          r"|unable to (?:write to file|allocate shared memory)|/dev/shm.{0,300}(?:No space left|size \d+)"
          r"|(?:No space left"
          r"|Errno 28).{0,300}/dev/shm"
          r"|creating shared memory segment|shared memory segment.{0,300}fail|killed by signal: Bus error"
          r"|unable to mmap \d+ bytes from file <(?:filename not specified|/torch)",
          needles=("/dev/shm", "allocate shared memory", "insufficient shared memory",
                   "killed by signal: bus error", "out of shared memory", "shared memory object",
                   "shared memory segment", "unable to mmap ", "unable to write to file")),
    cause("shm_exhausted", "sigbus",
          r"\bBus error\b|\bSIGBUS\b|Signal: Bus error", "medium",
          needles=("bus error", "sigbus")),
    cause("host_oom", "cpu-alloc",
          r"DefaultCPUAllocator: (?:can't|not enough)|\bMemoryError\b|std::bad_alloc|Errno 12\b"
          r"|Cannot allocate memory"
          r"|_ArrayMemoryError",
          needles=("cannot allocate memory", "defaultcpuallocator: ", "errno ", "memoryerror", "std::bad_alloc")),
    cause("host_oom", "worker-killed", r"DataLoader worker \(pid\(?s?\)? .{0,300}killed by signal: Killed",
          needles=("killed by signal: killed",)),
    cause("disk_full", "no-space",
          r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]|StorageFull|\bos error 28\b",
          needles=("errno ", "disk quota exceeded", "no space left on device", "os error ", "storagefull")),
    cause("disk_full", "writer",
          r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] ?\.? ?(?:unexpected pos"
          r"|.*file write failed)", "medium",
          needles=("inline_container.cc:", "pytorchstreamwriter failed writing")),
    cause("segfault", "segv",
          r"[Ss]egmentation [Ff]ault|\bSIGSEGV\b|\bsegfault at\b|Fatal Python error: (?!Aborted)",
          needles=("fatal python error: ", "segfault at", "segmentation fault", "sigsegv")),
    cause("segfault", "heap",
          r"double free or corruption|free\(\): invalid|corrupted (?:size|double-linked|unsorted)|malloc\(\): \w"
          r"|malloc_consolidate|munmap_chunk|stack smashing detected|[Ii]llegal instruction",
          needles=("corrupted size", "corrupted double-linked", "corrupted unsorted", "double free or corruption",
                   "free(): invalid", "illegal instruction", "malloc(): ", "malloc_consolidate", "munmap_chunk",
                   "stack smashing detected")),
    entry(Tier.HINT, "segfault", "abort",
          r"Fatal Python error: Aborted|terminate called (?:after throwing|without)|Aborted \(core dumped\)",
          "medium",
          needles=("aborted (core dumped)", "fatal python error: aborted", "terminate called ")),
)
