"""What the machine says: the cluster around it, its GPUs and its host."""

from harness.diagnosis.signatures.signature import Tier, cause, entry

_V = Tier.VERDICT

# fmt: off
MACHINE = (
    # Kubernetes, Slurm, the cloud and the kernel about a pod, a node or a job.
    entry(_V, "parity_mismatch", "parity", r"\bPARITY MISMATCH\b",
          needles=("parity mismatch",)),
    entry(_V, "host_oom", "k8s-oomkilled", r"\bOOMKilled\b",
          needles=("oomkilled",)),
    entry(_V, "host_oom", "kernel-oom",
          r"Out of memory: Kill(?:ed)? process|[Mm]emory cgroup out of memory|\boom-kill:"
          r"|Killed process \d+ \(.*anon-rss"
          r"|invoked oom-killer|[Dd]etected \d+ oom[-_]kill|\boom_reaper: reaped",
          needles=("invoked oom-killer", "killed process ", "memory cgroup out of memory", "oom-kill", "oom_kill",
                   "oom_reaper: reaped", "out of memory: kill")),
    entry(_V, "host_oom", "slurm-oom",
          r"srun: error: .{0,300}: Out [Oo]f [Mm]emory|[Ee]xceeded (?:job|step) memory limit|State=OUT_OF_MEMORY"
          r"|\bOUT_OF_ME\+?|\bOUT_OF_MEMORY\s+0:125",
          needles=(" memory limit", ": out of memory", "out_of_me")),
    entry(_V, "host_oom", "lsf-pbs-oom",
          r"TERM_MEMLIMIT|PBS: job killed: v?mem .{0,300} exceeded limit",
          needles=("pbs: job killed: ", "term_memlimit")),
    entry(_V, "host_oom", "ray-oom",
          r"ray\.exceptions\.OutOfMemoryError|due to the node running low on memory"
          r"|[1-9]\d* Workers .{0,60}killed due to memory pressure",
          needles=("due to the node running low on memory", "killed due to memory pressure",
                   "ray.exceptions.outofmemoryerror")),
    entry(_V, "preemption", "slurm-preempted",
          r"JobState=(?:PREEMPTED|NODE_FAIL)|\b(?:PREEMPTED|NODE_FAIL)\s+\d+:\d+"
          r"|CANCELLED (?:AT \S+ )?DUE TO (?:PREEMPTION|JOB REQUEUE|NODE FAILURE|SIGNAL Terminated BY PREEMPT)",
          needles=("cancelled ", "node_fail", "preempted")),
    entry(_V, "deadline", "slurm-time-limit",
          r"DUE TO TIME LIMIT|this job is timed-out|TERM_RUNLIMIT|job killed: walltime|JobState=TIMEOUT"
          r"|\bTIMEOUT\s+\d+:\d+",
          needles=("due to time limit", "job killed: walltime", "term_runlimit", "this job is timed-out", "timeout")),
    entry(_V, "deadline", "k8s-deadline",
          r"(?<!exceptions\.)(?<!context )\bDeadlineExceeded\b"
          r"|active (?:on the node )?longer than (?:the )?specified deadline",
          needles=("deadlineexceeded", "specified deadline")),
    entry(_V, "user_cancelled", "slurm-cancelled",
          r"\*\*\* (?:JOB|STEP) .{0,300} CANCELLED AT \S+ ?(?:\*\*\*|by|BY)|JobState=CANCELLED|\bCANCELLED by \d+",
          needles=(" cancelled at ", "cancelled by ", "jobstate=cancelled")),
    entry(_V, "preemption", "k8s-node-shutdown",
          r"imminent node shutdown|[Rr]eason:?\s*\"?NodeShutdown|Node is shutting(?: down)?, evicting pods"
          r"|node shutdown event",
          needles=("imminent node shutdown", "node is shutting", "node shutdown event", "nodeshutdown")),
    entry(_V, "preemption", "k8s-disruption",
          r"PreemptionByScheduler|DeletionByTaintManager|DeletionByPodGC|EvictionByEvictionAPI",
          needles=("deletionbypodgc", "deletionbytaintmanager", "evictionbyevictionapi", "preemptionbyscheduler")),
    entry(_V, "preemption", "k8s-pod-gone",
          r"^Reason:\s+(?:Terminated|NodeShutdown|Shutdown|NodeLost)\s*$|^  reason: (?:Terminated|NodeShutdown"
          r"|NodeLost)\s*$"
          r"|\b\d+/\d+\s+(?:Terminated|NodeShutdown|Preempting)\b|TaintManagerEviction",
          needles=("  reason: ", "nodelost", "preempting", "shutdown", "taintmanagereviction", "terminated")),
    entry(_V, "preemption", "k8s-preempted",
          r"\bPreempted\b.{0,300}\bby\b|Preempted (?:in order to admit|to accommodate)|\bReason:\s+Preempt(?:ed|ing)"
          r"|\bWarning\s+Preempt",
          needles=("in order to admit", "preempt", "to accommodate")),
    entry(_V, "preemption", "cloud-spot",
          r"compute\.instances\.preempted|[Ii]nstance (?:\S+ )?(?:was|is being|has been) preempted|"
          r"(?i:spot (?:instance )?(?:interruption|termination|reclaim)|rebalance recommendation)"
          r"|instance/preempted.{0,300}TRUE|(?i:node .{0,300}(?:was|has been|is being) preempted)"
          r"|this job is preempted",
          needles=(" preempted", "compute.instances.preempted", "instance/preempted", "rebalance recommendation",
                   "spot ")),
    entry(_V, "evicted", "k8s-evicted",
          r"node was low on resource|The node had condition: \[\w*Pressure"
          r"|^[a-z0-9][a-z0-9.]*-[\w.-]+\s+(?:\S+\s+){0,3}Evicted(?:\s|$)|[Rr]eason:?\s*\"?Evicted|\b\d+/\d+\s+Evicted\b|\bWarning\s+Evicted\b"
          r"|Usage of EmptyDir volume .{0,300} exceeds"
          r"|ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit",
          needles=("the node had condition",
                   "ephemeral local storage usage exceeds", "evicted",
                   "exceeded its local ephemeral storage limit", "node was low on resource",
                   "usage of emptydir volume ")),
    entry(_V, "image_pull", "k8s-image-pull",
          r"ErrImagePull|ImagePullBackOff|Failed to pull image|InvalidImageName|ErrImageNeverPull"
          r"|Back-off pulling image"
          r"|manifest unknown|pull access denied",
          needles=("back-off pulling image", "errimageneverpull", "errimagepull", "failed to pull image",
                   "imagepullbackoff", "invalidimagename", "manifest unknown", "pull access denied")),
    entry(_V, "unschedulable", "k8s-unschedulable",
          r"FailedScheduling|\d+/\d+ nodes are available|NotTriggerScaleUp|FailedScaleUp|didn't trigger scale-up"
          r"|[Rr]eason:?\s*\"?Unschedulable|GCE out of resources|ZONE_RESOURCE_POOL_EXHAUSTED|GCE quota exceeded",
          needles=(" nodes are available", "didn't trigger scale-up", "failedscaleup", "failedscheduling",
                   "gce out of resources", "gce quota exceeded", "nottriggerscaleup", "unschedulable",
                   "zone_resource_pool_exhausted")),
    entry(_V, "upload_failed", "upload",
          r"\bUPLOAD FAILED\b|S3UploadFailedError|(?i:failed to upload .{0,300} to (?:gs|s3)://)"
          r"|(?:403|Forbidden|503|Unavailable).{0,300}https://storage\.googleapis\.com/upload/",
          needles=("failed to upload ", "https://storage.googleapis.com/upload/", "uploadfailederror",
                   "upload failed")),
    # The GPU, its driver and its allocator.
    cause("cuda_oom", "torch-oom",
          r"(?:CUDA|HIP|XPU|NPU) out of memory|torch(?:\.cuda)?\.OutOfMemoryError"
          r"|(?:CUDA|HIP) error:? ?(?:\(?2\)?)?:? out of memory|[Cc]uda failure (?:\d+ )?'out of memory'"
          r"|CUDA driver error: out of memory|RESOURCE_EXHAUSTED: Out of memory|cudaErrorMemoryAllocation"
          r"|cuda runtime error \(2\)|CUDA_ERROR_OUT_OF_MEMORY"
          r"|cudaMalloc\w* failed.{0,300}out of memory",
          needles=("outofmemoryerror", "cuda runtime error (", "cuda_error_out_of_memory",
                   "cudaerrormemoryallocation", "out of memory")),
    cause("cuda_oom", "library-alloc",
          r"CU(?:BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED|Failed to allocate memory for requested buffer", "medium",
          needles=("_status_alloc_failed", "failed to allocate memory for requested buffer")),
    cause("network_fault", "gpu-fabric",
          r"\bSXid\b.{0,80}(?i:fatal|error|fault)|(?i:nvswitch).{0,120}(?i:fatal|link (?:is )?down|failure|failed)"
          r"|(?i:nvlink).{0,60}(?i:link (?:is )?down|went down|inactive)"
          r"|(?i:gpu fabric).{0,80}(?i:error|fail|degraded)",
          needles=("sxid", "nvswitch", "nvlink", "gpu fabric"),
          advice="Drain the node and check its NVLink fabric (nvidia-smi nvlink -s, the fabric manager's log)."),
    cause("gpu_hardware", "xid", r"Xid \(?.*?\)?: ?(?:48|6[1-4]|74|79|9[245]|1[12]\d|140|143|149)\b",
          needles=("xid ",)),
    cause("gpu_hardware", "ecc-nvlink",
          r"uncorrectable (?:ECC|NVLink) error|fallen off the bus|GPU is lost|uncorrectable ECC|double[- ]bit ECC"
          r"|[Uu]nable to determine the device handle for (?:GPU|gpu)|NVLink error detected|hardware (?:fault"
          r"|stack error)",
          needles=("bit ecc", "fallen off the bus", "hardware fault", "hardware stack error", "gpu is lost",
                   "nvlink error detected", "unable to determine the device handle for ", "uncorrectable ")),
    cause("driver_mismatch", "no-driver",
          r"Found no NVIDIA driver|No CUDA GPUs are available|NVIDIA driver on your system is too old"
          r"|no CUDA-capable device is detected"
          r"|libcuda\.so(?:\.1)?: cannot open|driver not loaded|[Nn]o NVIDIA driver"
          r"|couldn't communicate with the NVIDIA driver",
          needles=("libcuda.so", "couldn't communicate with the nvidia driver", "driver not loaded",
                   "no cuda gpus are available", "no cuda-capable device is detected", "no nvidia driver",
                   "nvidia driver on your system is too old")),
    cause("driver_mismatch", "driver-version",
          r"CUDA driver version is insufficient|Driver/library version mismatch|forward compatibility was attempted"
          r"|unsupported display driver / cuda driver|unsupported toolchain|system not yet initialized"
          r"|Unexpected error from cudaGetDeviceCount",
          needles=("cuda driver version is insufficient", "driver/library version mismatch",
                   "forward compatibility was attempted", "system not yet initialized",
                   "unexpected error from cudagetdevicecount", "unsupported display driver / cuda driver",
                   "unsupported toolchain")),
    cause("driver_mismatch", "no-gpu-runtime",
          r"could not select device driver|Torch not compiled with CUDA enabled|CUDA unknown error", "medium",
          needles=("could not select device driver", "cuda unknown error", "torch not compiled with cuda enabled")),
    cause("cuda_error", "cuda-error",
          r"CUDA error:? (?!out of memory)\S|device-side assert|HIP error: \S|[Cc]uda failure (?:\d+ )?'(?!out of)"
          r"|CUDA_ERROR_(?!OUT_OF_MEMORY)[A-Z_]+|AcceleratorError: CUDA|cudaError\w+:",
          needles=("acceleratorerror: cuda", "cuda error", "cuda failure ", "cuda_error_", "cudaerror",
                   "device-side assert", "hip error: ")),
    cause("cuda_error", "cuda-library",
          r"CUBLAS_STATUS_(?!SUCCESS|ALLOC)\w+|CUDNN_STATUS_(?!SUCCESS|ALLOC)\w+|cuDNN error|cuFFT error"
          r"|cusolver error"
          r"|CUSPARSE_STATUS_(?!SUCCESS|ALLOC)\w+|illegal memory access|cuda runtime error \((?!2\))",
          needles=("cublas_status_", "cuda runtime error (", "cudnn error", "cudnn_status_", "cufft error",
                   "cusolver error", "cusparse_status_", "illegal memory access")),
    entry(Tier.HINT, "cuda_error", "xid-application", r"Xid \(?.*?\)?: ?(?:13|31|32|43|45|68|69)\b", "medium",
          needles=("xid ",)),
    # The host's memory, shared memory and disks; how native code dies.
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
