"""Every signature, in the order they are tried: the first that matches a line is what the line says."""

from harness.diagnosis.signatures.machine import MACHINE
from harness.diagnosis.signatures.program import COMMUNICATION, NETWORK, PROGRAM
from harness.diagnosis.signatures.signature import Signature, Tier, entry

_B, _C = Tier.BENIGN, Tier.COMPLETE

# fmt: off
BENIGN = (
    entry(_B, "unknown", "fault-announced", r"FAULT INJECTED",
          needles=("fault injected",)),
    entry(_B, "unknown", "loss-scale-skip",
          r"(?i)overflow!.{0,300}skipping|gradient overflow\.\s+skipping step",
          needles=("gradient overflow.", "overflow!")),
    entry(_B, "unknown", "library-probe",
          r"NCCL WARN Failed to open libibverbs|[Cc]ould not load dynamic library|dlerror"
          r"|thrown while requesting (?:HEAD|GET)",
          needles=("could not load dynamic library", "dlerror", "nccl warn failed to open libibverbs",
                   "thrown while requesting ")),
    entry(Tier.MESSENGER, "unknown", "ray-potential-causes",
          r"potential root causes|worker died or was killed while executing",
          needles=("potential root causes", "worker died or was killed while executing")),
    entry(_B, "unknown", "teardown-warning",
          r"destroy_process_group\(?\)? was not called|process group has NOT been destroyed"
          r"|leaked (?:semaphore|shared_memory)",
          needles=("destroy_process_group", "process group has not been destroyed", "leaked ")),
    entry(_B, "unknown", "oom-recovered",
          r"(?i)^(?!.*(?:Error|Exception):)(?:.*\b(?:recover(?:ed|ing)?|skip(?:ped|ping)|retrying"
          r"|reducing batch size)\b"
          r".{0,60}(?:[ (\[:=]oom\b|\boom[ :,!]|out of memory)|.*(?:[ (\[:=]oom\b|\boom[ :,!]|out of memory).{0,80}"
          r"\b(?:recovered|skipp(?:ed|ing)|retrying|reducing batch size (?:to|from) \d))",
          needles=(" oom", "(oom", "[oom", ":oom", "=oom", "oom ", "oom:", "oom,", "oom!", "out of memory")),
    entry(_B, "unknown", "allocation-refused", r"\bALLOCATION REFUSED at \d",
          needles=("allocation refused at ",)),
    entry(_B, "unknown", "pod-not-ended",
          r"^\s*State:\s+(?:Running|Waiting)\b|^\s*\"?phase\"?:\s*\"?(?:Running|Pending)\b"
          r"|^Status:\s+(?:Running|Pending)\b",
          needles=("pending", "running", "state:", "status:")),
    entry(_C, "ok", "run-complete", r"\bRUN COMPLETE\b",
          needles=("run complete",)),
    entry(_C, "ok", "hf-trainer-end",
          r"'train_runtime':|\btrain_runtime\s+=|Training completed\. Do not forget",
          needles=("train_runtime", "training completed. do not forget")),
    entry(_C, "ok", "lightning-end", r"Trainer\.fit`? stopped: .{0,300}reached",
          needles=("trainer.fit",)),
    entry(_C, "ok", "elastic-succeeded",
          r"WorkerState\.SUCCEEDED|worker group successfully finished",
          needles=("worker group successfully finished", "workerstate.succeeded")),
    entry(_C, "ok", "epochs-completed",
          r"\d+ epochs completed in [\d.]+ |^(?:.*\]: )?(?:Total t|T)raining time:? \d+:",
          needles=(" epochs completed in ", "raining time")),
    entry(_C, "ok", "megatron-end", r"\[after training is done\]",
          needles=("[after training is done]",)),
    entry(_C, "ok", "pod-completed", r"^\s*[Rr]eason:\s+Completed\s*$|\bNormal\s+Completed\b.{0,300}Job completed"
          r"|^\s*\"?phase\"?:\s*\"?Succeeded\b|^Status:\s+Succeeded\s*$",
          needles=("completed", "succeeded")),
    entry(_C, "ok", "exit-zero",
          r"(?i:\b(?:exit(?:ed)? ?(?:with )?(?:code|status)|return ?code)\s*[:=]?\s*0\s*\)?\s*$)",
          needles=("exit", "return code", "returncode", "return  code")),
    entry(_C, "ok", "scheduler-completed",
          r"Job '[\w-]+' succeeded|JobState=COMPLETED|(?i:status:? succeeded)|\bCOMPLETED\s+0:0\b",
          needles=(" succeeded", "completed")),
    entry(_C, "ok", "training-finished",
          r"(?i)^(?!.*\b(?:when|after|once|until|before|if|not|never|resum\w*|epochs?|steps?|iter\w*|fold|stage|phase"
          r"|will|fail\w*)\b)(?:.*\b(?:training|fine-?tuning) (?:has |is |was |run )?(?:been )?(?:successfully )?"
          r"(?:finished|completed?|done|ended)\b|.*\b(?:finished|completed|done) (?:with )?(?:training"
          r"|fine-?tuning)\b)",
          needles=("complete", "done", "ended", "finished")),
)
# fmt: on
"""Lines that look like a death and are none, and lines with which a run says that it finished."""

SIGNATURES: tuple[Signature, ...] = (*BENIGN, *MACHINE, *NETWORK, *COMMUNICATION, *PROGRAM)

_names = [s.name for s in SIGNATURES]
if len(set(_names)) != len(_names):
    raise ValueError(f"two signatures share a name: {sorted(n for n in _names if _names.count(n) > 1)}")
