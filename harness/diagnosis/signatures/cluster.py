"""What Kubernetes, Slurm, the cloud and the kernel say about a pod, a node or a job."""

from harness.diagnosis.signature import Tier, entry

_V = Tier.VERDICT

# fmt: off
CLUSTER = (
    entry(_V, "parity_mismatch", "parity", "parity mismatch", r"\bPARITY MISMATCH\b"),
    entry(_V, "host_oom", "k8s-oomkilled", "oomkilled", r"\bOOMKilled\b"),
    entry(_V, "host_oom", "kernel-oom", ("killed process", "oom-kill", "oom_kill", "oom_reaper", "invoked oom"),
          r"Out of memory: Kill(?:ed)? process|[Mm]emory cgroup out of memory|\boom-kill:|Killed process \d+ \(.*anon-rss"
          r"|invoked oom-killer|[Dd]etected \d+ oom[-_]kill|\boom_reaper: reaped"),
    entry(_V, "host_oom", "slurm-oom", ("out of memory", "memory limit", "out_of_memory"),
          r"srun: error: .*: Out [Oo]f [Mm]emory|[Ee]xceeded (?:job|step) memory limit|State=OUT_OF_MEMORY"
          r"|\bOUT_OF_ME\+?|\bOUT_OF_MEMORY\s+0:125"),
    entry(_V, "host_oom", "lsf-pbs-oom", ("term_memlimit", "mem ", "vmem"),
          r"TERM_MEMLIMIT|PBS: job killed: v?mem .* exceeded limit"),
    entry(_V, "host_oom", "ray-oom", ("low on memory", "outofmemoryerror"),
          r"ray\.exceptions\.OutOfMemoryError|due to the node running low on memory"),
    entry(_V, "preemption", "slurm-preempted", "due to",
          r"CANCELLED (?:AT \S+ )?DUE TO (?:PREEMPTION|JOB REQUEUE|NODE FAILURE|SIGNAL Terminated BY PREEMPT)"),
    entry(_V, "deadline", "slurm-time-limit", ("time limit", "runlimit", "walltime", "timeout"),
          r"DUE TO TIME LIMIT|TERM_RUNLIMIT|job killed: walltime|JobState=TIMEOUT"),
    entry(_V, "deadline", "k8s-deadline", ("deadlineexceeded", "deadline"),
          r"\bDeadlineExceeded\b(?!.*context)|active (?:on the node )?longer than (?:the )?specified deadline"),
    entry(_V, "user_cancelled", "slurm-cancelled", ("cancelled at", "cancelled by"),
          r"\*\*\* (?:JOB|STEP) .* CANCELLED AT \S+ ?(?:\*\*\*|by|BY)|JobState=CANCELLED|\bCANCELLED by \d+"),
    entry(_V, "preemption", "k8s-node-shutdown", ("node shutdown", "nodeshutdown", "node is shutting"),
          r"imminent node shutdown|[Rr]eason:?\s*\"?NodeShutdown|Node is shutting(?: down)?, evicting pods|node shutdown event"),
    entry(_V, "preemption", "k8s-disruption", ("preemptionbyscheduler", "deletionbytaintmanager", "deletionbypodgc"),
          r"PreemptionByScheduler|DeletionByTaintManager|DeletionByPodGC"),
    entry(_V, "preemption", "k8s-preempted", "preempt",
          r"\bPreempted\b.*\bby\b|Preempted in order to admit|\bReason:\s+Preempt(?:ed|ing)|\bWarning\s+Preempt"),
    entry(_V, "preemption", "cloud-spot", ("preempt", "spot", "interruption"),
          r"compute\.instances\.preempted|[Ii]nstance (?:\S+ )?(?:was|is being|has been) preempted|"
          r"(?i:spot (?:instance )?(?:interruption|termination|reclaim)|rebalance recommendation)"
          r"|instance/preempted.*TRUE|(?i:node .*(?:was|has been|is being) preempted)"),
    entry(_V, "evicted", "k8s-evicted", ("low on resource", "evicted", "exceeds the", "exceeded its", "diskpressure"),
          r"node was low on resource|[Rr]eason:?\s*\"?Evicted|\bEvicted\b\s+\S|Usage of EmptyDir volume .* exceeds"
          r"|ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit"),
    entry(_V, "image_pull", "k8s-image-pull",
          ("errimagepull", "imagepullbackoff", "pull image", "invalidimagename", "errimageneverpull", "pulling image",
           "manifest unknown", "pull access denied"),
          r"ErrImagePull|ImagePullBackOff|Failed to pull image|InvalidImageName|ErrImageNeverPull|Back-off pulling image"
          r"|manifest unknown|pull access denied"),
    entry(_V, "unschedulable", "k8s-unschedulable",
          ("failedscheduling", "nodes are available", "nottriggerscaleup", "failedscaleup", "trigger scale-up",
           "unschedulable", "out of resources", "resource_pool_exhausted", "gce quota exceeded"),
          r"FailedScheduling|\d+/\d+ nodes are available|NotTriggerScaleUp|FailedScaleUp|didn't trigger scale-up"
          r"|[Rr]eason:?\s*\"?Unschedulable|GCE out of resources|ZONE_RESOURCE_POOL_EXHAUSTED|GCE quota exceeded"),
    entry(_V, "upload_failed", "upload", ("upload",),
          r"\bUPLOAD FAILED\b|S3UploadFailedError|(?i:failed to upload .* to (?:gs|s3)://)"
          r"|(?:403|Forbidden|503|Unavailable).*https://storage\.googleapis\.com/upload/"),
)
