"""What Kubernetes, Slurm, the cloud and the kernel say about a pod, a node or a job."""

from harness.diagnosis.signature import Tier, entry

_V = Tier.VERDICT

# fmt: off
CLUSTER = (
    entry(_V, "parity_mismatch", "parity", r"\bPARITY MISMATCH\b"),
    entry(_V, "host_oom", "k8s-oomkilled", r"\bOOMKilled\b"),
    entry(_V, "host_oom", "kernel-oom",
          r"Out of memory: Kill(?:ed)? process|[Mm]emory cgroup out of memory|\boom-kill:"
          r"|Killed process \d+ \(.*anon-rss"
          r"|invoked oom-killer|[Dd]etected \d+ oom[-_]kill|\boom_reaper: reaped"),
    entry(_V, "host_oom", "slurm-oom",
          r"srun: error: .{0,300}: Out [Oo]f [Mm]emory|[Ee]xceeded (?:job|step) memory limit|State=OUT_OF_MEMORY"
          r"|\bOUT_OF_ME\+?|\bOUT_OF_MEMORY\s+0:125"),
    entry(_V, "host_oom", "lsf-pbs-oom",
          r"TERM_MEMLIMIT|PBS: job killed: v?mem .{0,300} exceeded limit"),
    entry(_V, "host_oom", "ray-oom",
          r"ray\.exceptions\.OutOfMemoryError|due to the node running low on memory"
          r"|[1-9]\d* Workers .{0,60}killed due to memory pressure"),
    entry(_V, "preemption", "slurm-preempted",
          r"JobState=(?:PREEMPTED|NODE_FAIL)|\b(?:PREEMPTED|NODE_FAIL)\s+\d+:\d+"
          r"|CANCELLED (?:AT \S+ )?DUE TO (?:PREEMPTION|JOB REQUEUE|NODE FAILURE|SIGNAL Terminated BY PREEMPT)"),
    entry(_V, "deadline", "slurm-time-limit",
          r"DUE TO TIME LIMIT|this job is timed-out|TERM_RUNLIMIT|job killed: walltime|JobState=TIMEOUT"
          r"|\bTIMEOUT\s+\d+:\d+"),
    entry(_V, "deadline", "k8s-deadline",
          r"(?<!exceptions\.)(?<!context )\bDeadlineExceeded\b"
          r"|active (?:on the node )?longer than (?:the )?specified deadline"),
    entry(_V, "user_cancelled", "slurm-cancelled",
          r"\*\*\* (?:JOB|STEP) .{0,300} CANCELLED AT \S+ ?(?:\*\*\*|by|BY)|JobState=CANCELLED|\bCANCELLED by \d+"),
    entry(_V, "preemption", "k8s-node-shutdown",
          r"imminent node shutdown|[Rr]eason:?\s*\"?NodeShutdown|Node is shutting(?: down)?, evicting pods"
          r"|node shutdown event"),
    entry(_V, "preemption", "k8s-disruption",
          r"PreemptionByScheduler|DeletionByTaintManager|DeletionByPodGC|EvictionByEvictionAPI"),
    entry(_V, "preemption", "k8s-pod-gone",
          r"^Reason:\s+(?:Terminated|NodeShutdown|Shutdown|NodeLost)\s*$|^  reason: (?:Terminated|NodeShutdown"
          r"|NodeLost)\s*$"
          r"|\b\d+/\d+\s+(?:Terminated|NodeShutdown|Preempting)\b|TaintManagerEviction"),
    entry(_V, "preemption", "k8s-preempted",
          r"\bPreempted\b.{0,300}\bby\b|Preempted (?:in order to admit|to accommodate)|\bReason:\s+Preempt(?:ed|ing)"
          r"|\bWarning\s+Preempt"),
    entry(_V, "preemption", "cloud-spot",
          r"compute\.instances\.preempted|[Ii]nstance (?:\S+ )?(?:was|is being|has been) preempted|"
          r"(?i:spot (?:instance )?(?:interruption|termination|reclaim)|rebalance recommendation)"
          r"|instance/preempted.{0,300}TRUE|(?i:node .{0,300}(?:was|has been|is being) preempted)"
          r"|this job is preempted"),
    entry(_V, "evicted", "k8s-evicted",
          r"node was low on resource|[Rr]eason:?\s*\"?Evicted|\b\d+/\d+\s+Evicted\b|\bWarning\s+Evicted\b"
          r"|Usage of EmptyDir volume .{0,300} exceeds"
          r"|ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit"),
    entry(_V, "image_pull", "k8s-image-pull",
          r"ErrImagePull|ImagePullBackOff|Failed to pull image|InvalidImageName|ErrImageNeverPull"
          r"|Back-off pulling image"
          r"|manifest unknown|pull access denied"),
    entry(_V, "unschedulable", "k8s-unschedulable",
          r"FailedScheduling|\d+/\d+ nodes are available|NotTriggerScaleUp|FailedScaleUp|didn't trigger scale-up"
          r"|[Rr]eason:?\s*\"?Unschedulable|GCE out of resources|ZONE_RESOURCE_POOL_EXHAUSTED|GCE quota exceeded"),
    entry(_V, "upload_failed", "upload",
          r"\bUPLOAD FAILED\b|S3UploadFailedError|(?i:failed to upload .{0,300} to (?:gs|s3)://)"
          r"|(?:403|Forbidden|503|Unavailable).{0,300}https://storage\.googleapis\.com/upload/"),
)
