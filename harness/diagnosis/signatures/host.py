"""What the host's memory, shared memory and disks say, and how native code dies."""

from harness.diagnosis.signatures.signature import Tier, cause, entry

# fmt: off
HOST = (
    # Who reports decides what an errno means: these come before the signatures that read the errno alone.
    cause("nccl_init", "locked-memory",
          r"\bibv_\w+.{0,120}(?:Cannot allocate memory|ENOMEM|errno:? ?12\b|error 12\b)"
          r"|UCX.{0,200}(?:Cannot allocate memory|ENOMEM|max locked memory|memlock)"
          r"|[Ff]ailed to (?:register|pin|lock) memory.{0,120}Cannot allocate memory|\bmlock\w* failed",
          needles=("ibv_", "ucx", "to register memory", "to pin memory", "to lock memory", "mlock"),
          advice="Raise the limit of locked memory (`ulimit -l unlimited`, LimitMEMLOCK, or the container's)."),
    cause("nccl_init", "shm-rights",
          r"(?:shm_open|shmget|/dev/shm|shm\.h|shmutils).{0,200}(?:Permission denied|Operation not permitted|EACCES"
          r"|\(13\))|(?:Permission denied|Errno 13\b).{0,200}/dev/shm",
          needles=("shm_open", "shmget", "/dev/shm", "shm.h", "shmutils"),
          advice="Give the process write access to /dev/shm; its size is not the problem."),
    cause("python_exception", "inotify-limit",
          r"inotify (?:watch|instance)\w* limit|(?i:inotify).{0,120}(?:No space left|Too many open files|Errno 2[48])"
          r"|max_user_(?:watches|instances)",
          needles=("inotify", "max_user_watches", "max_user_instances"),
          advice="Raise the sysctl fs.inotify.max_user_watches (or max_user_instances); no disk is full."),
    cause("shm_exhausted", "shm-by-call",
          r"(?:shm\.h|shmutils|shm_open|posix_fallocate|SemLock|nccl-shm|/psm_|/torch_\d).{0,200}"
          r"(?:No space left|ENOSPC|Errno 28\b)",
          needles=("shm.h", "shmutils", "shm_open", "posix_fallocate", "semlock", "nccl-shm", "/psm_", "/torch_")),
    cause("shm_exhausted", "shm",
          r"out of shared memory|insufficient shared memory|shared memory object.{0,300}(?:No space left"
          r"|Cannot allocate)"
          r"|unable to (?:write to file|allocate shared memory)|/dev/shm.{0,300}(?:No space left|size \d+)"
          r"|(?:No space left"
          r"|Errno 28).{0,300}/dev/shm"
          r"|shared memory segment.{0,300}fail|killed by signal: Bus error"
          r"|unable to mmap \d+ bytes from file <(?:filename not specified|/torch)",
          needles=("/dev/shm", "allocate shared memory", "insufficient shared memory",
                   "killed by signal: bus error", "out of shared memory", "shared memory object",
                   "shared memory segment", "unable to mmap ", "unable to write to file")),
    cause("shm_exhausted", "shm-segment", r"creating shared memory segment", "medium",
          needles=("shared memory segment",)),
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
          r"Fatal Python error: Aborted|^(?!.*(?:NCCL|nccl|c10::Dist)).*terminate called (?:after throwing|without)"
          r"|Aborted \(core dumped\)",
          "medium",
          needles=("aborted (core dumped)", "fatal python error: aborted", "terminate called ")),
)
