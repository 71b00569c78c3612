"""The closed list of ways in which an attempt can end, each with its blame, the use of a retry and the cure.

Design section 7. `harness/diagnosis/` makes the diagnosis; everybody else reads this table and shows it.
"""

from dataclasses import dataclass
from typing import Literal

from harness.contract.errors import SpecError, nearest

Blame = Literal["nobody", "config", "code", "infrastructure", "user"]
Confidence = Literal["high", "medium", "low"]
Memory = Literal["gpu", "host", "may be gpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One way to end."""

    name: str
    blame: Blame
    retry_helps: bool
    """Whether the same spec may end otherwise when it is simply launched again."""
    remedy: str | None
    """Name of the remedy in REMEDIES that the supervisor may apply as a second try."""
    sentence: str
    """One sentence for the reader, complete without the log."""
    advice: str
    """What to do next, one sentence."""
    memory: Memory | None = None
    """Which memory was too small: the card's, the host's, or perhaps the card's."""

    @property
    def does_not_fit(self) -> bool:
        """Whether the search for what fits may call the size too large: the card or the host ran out of memory.

        A plain wedge says nothing about the size, so the search must ask again.
        """
        return self.memory in ("gpu", "host")

    @property
    def near_gpu_limit(self) -> bool:
        """Whether the survival line counts the death: the line is drawn in bytes of the card.

        Host memory is another limit, so `host_oom` does not count. A wedge does: a rank that swallows its
        out-of-memory error leaves only the wedge to see, and that is how runs near the card's limit often end.
        """
        return self.memory in ("gpu", "may be gpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """A known cure, as environment variables of the second try."""

    name: str
    environment: dict[str, str]
    why: str


REMEDIES: dict[str, Remedy] = {
    "expandable-segments": Remedy(
        name="expandable-segments",
        # torch >= 2.9 reads PYTORCH_ALLOC_CONF and still accepts the old name.
        environment={
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        },
        why="the allocator maps physical pages into growing segments, so freed blocks of any size can be reused",
    ),
}

OUTCOMES: dict[str, Outcome] = {}


def _outcome(
    name: str,
    blame: Blame,
    retry_helps: bool,
    sentence: str,
    advice: str,
    *,
    remedy: str | None = None,
    memory: Memory | None = None,
) -> None:
    if name in OUTCOMES:
        raise SpecError(f"outcome {name!r} is declared twice")
    OUTCOMES[name] = Outcome(
        name=name, blame=blame, retry_helps=retry_helps, remedy=remedy, sentence=sentence, advice=advice, memory=memory
    )


_outcome("ok", "nobody", False, "The run finished.", "Nothing to do: the run did not fail.")
_outcome(
    "cuda_oom", "config", False,
    "A rank asked the GPU for more memory than the card has left.",
    "Use a smaller micro-batch, a higher ZeRO stage or resharding, activation checkpointing or offload.",
    memory="gpu",
)  # fmt: skip
_outcome(
    "cuda_oom_fragmentation", "config", False,
    "A rank ran out of GPU memory although enough was reserved and unused: the free blocks were too small.",
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True.",
    remedy="expandable-segments",
    memory="gpu",
)  # fmt: skip
_outcome(
    "host_oom", "config", False,
    "Host memory ran out: a process was killed, or could not allocate.",
    "Ask for more host memory, or use less: fewer data workers, less offload, less pinned memory.",
    memory="host",
)  # fmt: skip
_outcome(
    "collective_wedge", "code", True,
    "The ranks waited in a collective that one rank never joined.",
    "Find out what the absent rank was doing: its own log, its stack (py-spy dump), its last heartbeat.",
    memory="may be gpu",
)  # fmt: skip
_outcome(
    "wedge_masking_oom", "config", False,
    "One rank ran out of GPU memory and never joined the collective in which the others waited.",
    "Treat it as an out-of-memory error: use less memory per GPU. The timeout is only its consequence.",
    remedy="expandable-segments",
    memory="gpu",
)  # fmt: skip
_outcome(
    "preemption", "infrastructure", True,
    "The node was taken back, or the run was stopped, while it was training.",
    "Run again: nothing is wrong with the config.",
)  # fmt: skip
_outcome(
    "launcher_args", "code", False,
    "The launcher passed an argument that the script does not accept.",
    "Let the script accept --local_rank and --local-rank, or use parse_known_args.",
)  # fmt: skip
_outcome(
    "config_error", "config", False,
    "The engine refused its configuration.",
    "Correct the setting that the evidence names.",
)  # fmt: skip
_outcome(
    "import_error", "code", False,
    "Python could not import a module, or a library lacks a symbol.",
    "Install the package that the evidence names, in versions that fit each other.",
)  # fmt: skip
_outcome(
    "rendezvous", "infrastructure", True,
    "The ranks did not find each other.",
    "Check the master address, the port and the number of nodes.",
)  # fmt: skip
_outcome(
    "nccl_init", "infrastructure", True,
    "NCCL could not set up its communicator.",
    "Check the network interface and driver that NCCL's warning names; NCCL_DEBUG=INFO shows more.",
)  # fmt: skip
_outcome(
    "cuda_error", "code", False,
    "A CUDA call or kernel failed.",
    "Run once with CUDA_LAUNCH_BLOCKING=1: then the traceback names the call that failed.",
)  # fmt: skip
_outcome(
    "gpu_hardware", "infrastructure", True,
    "A GPU, or the link between GPUs, reported a hardware fault.",
    "Take the node out of service and run on another one.",
)  # fmt: skip
_outcome(
    "driver_mismatch", "infrastructure", False,
    "The driver is missing or does not fit the CUDA version of the program.",
    "Use an image whose CUDA version the driver supports.",
)  # fmt: skip
_outcome(
    "shm_exhausted", "config", False,
    "Shared memory (/dev/shm) was full.",
    "Mount a larger /dev/shm (a memory emptyDir in a pod).",
)  # fmt: skip
_outcome(
    "disk_full", "infrastructure", False,
    "A disk was full.",
    "Free space on the disk that the evidence names, or write elsewhere.",
)  # fmt: skip
_outcome(
    "hub_download", "infrastructure", True,
    "A model or data set could not be downloaded.",
    "Check the name, the token and the network, or use a local copy.",
)  # fmt: skip
_outcome(
    "jit_build", "code", False,
    "Compiling an extension or a kernel failed.",
    "Install the compiler that the evidence names, or build the extension at set-up.",
)  # fmt: skip
_outcome(
    "numerics", "config", False,
    "The loss or a gradient stopped being finite.",
    "Lower the learning rate, clip, or use a wider dtype.",
)  # fmt: skip
_outcome(
    "data_error", "code", False,
    "Loading or preparing the data failed.",
    "Check the sample or file that the evidence names.",
)  # fmt: skip
_outcome(
    "python_exception", "code", False,
    "The program raised an exception.",
    "Start at the exception in the evidence: its traceback ends in the line that raised it.",
)  # fmt: skip
_outcome(
    "segfault", "code", False,
    "A process crashed in native code: an invalid memory access, or an abort.",
    "Run once with PYTHONFAULTHANDLER=1: then the crash names the Python line; check that library versions fit.",
)  # fmt: skip
_outcome(
    "image_pull", "infrastructure", False,
    "The container image could not be pulled.",
    "Check the image name, the digest and the registry permissions.",
)  # fmt: skip
_outcome(
    "unschedulable", "infrastructure", True,
    "No node could take the pod.",
    "Wait for stock, or widen zones and machine types.",
)  # fmt: skip
_outcome(
    "evicted", "infrastructure", True,
    "The kubelet evicted the pod because its node ran short of a resource.",
    "Raise the pod's requests for the resource that the evidence names.",
)  # fmt: skip
_outcome(
    "network_fault", "infrastructure", True,
    "The network between the ranks failed while they were training: a link, a network card, a switch or a remote host.",
    "Run again on other nodes; check the link or the peer that the evidence names.",
)  # fmt: skip
_outcome(
    "deadline", "config", False,
    "The run was ended because its time limit passed.",
    "Raise the deadline or shorten the run.",
)  # fmt: skip
_outcome(
    "user_cancelled", "user", True,
    "Somebody cancelled the run.",
    "Run again when wanted.",
)  # fmt: skip
_outcome(
    "parity_mismatch", "config", False,
    "The run trained with other numerics than its arm promises, so its speed is not shown.",
    "Compare the dtypes and losses that the evidence names with those of the arm.",
)  # fmt: skip
_outcome(
    "upload_failed", "infrastructure", True,
    "The run finished but its results could not be uploaded.",
    "Check the bucket and its permissions; the pod's log holds the record.",
)  # fmt: skip
_outcome(
    "unknown", "nobody", True,
    "The evidence does not show why the run ended.",
    "Add what is missing, if there is more: the other ranks' logs, the exit code (--exit-code), the pod (--pod).",
)  # fmt: skip


def outcome(name: str) -> Outcome:
    """The outcome of that name. Raises SpecError for a name outside the closed list."""
    if name not in OUTCOMES:
        raise SpecError(f"outcome: found {name!r}; {nearest(name, tuple(OUTCOMES))}")
    return OUTCOMES[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One line of evidence for the outcome."""

    file: str
    line: int
    """1-based; 0 for a fact that is not a line of a text (an exit code, a pod condition)."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """How an attempt or a try ended, who died first, and what shows it."""

    outcome: str
    confidence: Confidence
    culprit_rank: int | None = None
    evidence: tuple[Evidence, ...] = ()
    runner_up: str | None = None
    """The outcome that is second most likely by the evidence, if any."""
    sentence: str = ""
    """One line for the reader, with the numbers that matter."""

    def __post_init__(self) -> None:
        outcome(self.outcome)
        if self.runner_up is not None:
            outcome(self.runner_up)
