"""What Kubernetes, Slurm, the cloud and the kernel say about a pod, a node or a job."""

from harness.diagnosis.signatures.signature import Tier, entry

_V = Tier.VERDICT

# fmt: off
CLUSTER = (
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
)
