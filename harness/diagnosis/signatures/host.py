"""What the host's memory, shared memory and disks say, and how native code dies."""

from harness.diagnosis.signature import Tier, cause, entry

# fmt: off
HOST = (
    cause("shm_exhausted", "shm",
          r"out of shared memory|insufficient shared memory|shared memory object.{0,300}(?:No space left"
          r"|Cannot allocate)"
          r"|unable to (?:write to file|allocate shared memory)|/dev/shm.{0,300}(?:No space left|size \d+)"
          r"|(?:No space left"
          r"|Errno 28).{0,300}/dev/shm"
          r"|creating shared memory segment|shared memory segment.{0,300}fail|killed by signal: Bus error"
          r"|unable to mmap \d+ bytes from file <(?:filename not specified|/torch)"),
    cause("shm_exhausted", "sigbus",
          r"\bBus error\b|\bSIGBUS\b|Signal: Bus error", "medium"),
    cause("host_oom", "cpu-alloc",
          r"DefaultCPUAllocator: (?:can't|not enough)|\bMemoryError\b|std::bad_alloc|Errno 12\b"
          r"|Cannot allocate memory"
          r"|_ArrayMemoryError"),
    cause("host_oom", "worker-killed", r"DataLoader worker \(pid\(?s?\)? .{0,300}killed by signal: Killed"),
    cause("disk_full", "no-space",
          r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]|StorageFull|\bos error 28\b"),
    cause("disk_full", "writer",
          r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] ?\.? ?(?:unexpected pos"
          r"|.*file write failed)", "medium"),
    cause("segfault", "segv",
          r"[Ss]egmentation [Ff]ault|\bSIGSEGV\b|\bsegfault at\b|Fatal Python error: (?!Aborted)"),
    cause("segfault", "heap",
          r"double free or corruption|free\(\): invalid|corrupted (?:size|double-linked|unsorted)|malloc\(\): \w"
          r"|malloc_consolidate|munmap_chunk|stack smashing detected|[Ii]llegal instruction"),
    entry(Tier.HINT, "segfault", "abort",
          r"Fatal Python error: Aborted|terminate called (?:after throwing|without)|Aborted \(core dumped\)",
          "medium"),
)
