"""Lines that look like a death and are none, and lines with which a run says that it finished."""

from harness.diagnosis.signature import Tier, entry

_B, _C = Tier.BENIGN, Tier.COMPLETE

# fmt: off
BENIGN = (
    entry(_B, "unknown", "fault-announced", "fault injected", r"FAULT INJECTED"),
    entry(_B, "unknown", "loss-scale-skip", "overflow",
          r"(?i)overflow!.*skipping|gradient overflow\.\s+skipping step"),
    entry(_B, "unknown", "scheduler-no-victims", "preemption:",
          r"(?i)preemption: .*(?:no preemption victims|not helpful)(?!.*nodes are available)"),
    entry(_B, "unknown", "teardown-warning", ("destroy_process_group", "leaked semaphore", "leaked shared_memory"),
          r"destroy_process_group\(?\)? was not called|process group has NOT been destroyed"
          r"|leaked (?:semaphore|shared_memory)"),
    entry(_B, "unknown", "oom-recovered", ("oom", "out of memory"),
          r"(?i)(?:recover(?:ed|ing)?|skip(?:ped|ping)?|retry(?:ing)?|reduc(?:ed?|ing))\b.{0,60}(?:\boom\b|out of memory)"
          r"|(?:\boom\b|out of memory).{0,80}\b(?:recovered|skipp(?:ed|ing)|retrying|reducing)\b"),
    entry(_C, "ok", "run-complete", "run complete", r"\bRUN COMPLETE\b"),
    entry(_C, "ok", "hf-trainer-end", ("train_runtime", "training completed"),
          r"'train_runtime':|\btrain_runtime\s+=|Training completed\. Do not forget"),
    entry(_C, "ok", "lightning-end", "trainer.fit", r"Trainer\.fit`? stopped: .*reached"),
    entry(_C, "ok", "elastic-succeeded", ("workerstate.succeeded", "successfully finished"),
          r"WorkerState\.SUCCEEDED|worker group successfully finished"),
    entry(_C, "ok", "megatron-end", "after training is done", r"\[after training is done\]"),
    entry(_C, "ok", "pod-completed", "completed", r"^\s*Reason:\s+Completed\s*$|\bNormal\s+Completed\b.*Job completed"),
    entry(_C, "ok", "exit-zero", ("exit", "rc", "return code"),
          r"(?i:\b(?:exit(?:ed)? ?(?:with )?(?:code|status)|return ?code|rc)\s*[:=]?\s*0\s*$)"),
    entry(_C, "ok", "scheduler-completed", ("succeeded", "completed"),
          r"Job '[\w-]+' succeeded|JobState=COMPLETED|(?i:status:? succeeded)|\bCOMPLETED\s+0:0\b"),
    entry(_C, "ok", "training-finished", ("training", "finished", "train complete", "fine"),
          r"(?i:\b(?:training|train|fine-?tuning) (?:has |is |was |run )?(?:successfully )?"
          r"(?:finished|completed?|done)\b(?! (?:step|epoch|iter)))"
          r"|(?i:\b(?:finished|completed|done) (?:with )?(?:training|fine-?tuning)\b(?! (?:step|epoch|iter)))"),
)
