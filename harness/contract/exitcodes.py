"""Exit statuses of `python -m harness run`: 0 whenever a record was delivered, whatever the outcome."""

RECORD_DELIVERED = 0
INTERNAL = 70
"""The supervisor itself failed (EX_SOFTWARE): no record."""
CONFIG = 64
"""The spec cannot be run (EX_USAGE); the podFailurePolicy of a Job then fails the Job at once."""
DELIVERY = 74
"""A record was written but not delivered (EX_IOERR): upload refused, disk full."""
PREEMPTED = 143
"""With --upload only: the pod was taken away and its record delivered under pods/<n>/. Another pod must do
the work, and a zero would tell Kubernetes that the Job is done."""
