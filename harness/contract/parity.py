"""The parity gate: does a run keep its promises, and does it train as the study's reference does? Pure.

The worker checks this before it times anything. The client checks it again when it reads the records.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from harness.contract.codec import digest
from harness.contract.measured import Found, Measured
from harness.contract.spec import RunSpec

OPTIMIZER_CLASSES = {
    "torch-fused": "torch.optim.adamw.AdamW (fused)",
    "torch-foreach": "torch.optim.adamw.AdamW (foreach)",
    "deepspeed-fused": "deepspeed.ops.adam.fused_adam.FusedAdam",
    "deepspeed-cpu": "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam",
}
ROUNDING = 2.0**-8
"""Relative rounding error of one bfloat16 number. Each token's loss has one; over the tokens of a step they average
out."""
LEAST_TOLERANCE = 3e-5
"""Relative, on the first loss, however many tokens: on H200s engines differed by 4e-7, compiled ones by 1.3e-5."""
OUTPUT_TOLERANCE = 1e-3
"""Relative, on the mean magnitude of a module's first output: on CPUs engines gave the same, dropout 2% more."""
NORM_TOLERANCE = 0.02
"""Relative, on the gradient norm of the first step: on H200s engines differed by up to 0.07%, on CPUs by 0.01%."""
MOVED_TOLERANCE = 0.1
"""Relative, on how far parameters move: on CPUs engines differed by 0.1%."""
FALL_TOLERANCE = 0.05
"""Relative, on the fall of the loss: on CPUs engines differed by 0.2%, on H200s, where it hardly fell, by 1.2%."""
LEAST_FALL = 0.01
"""Share of the first loss that counts as a fall: a smaller one is compared as if it were this large."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One promise that was not kept."""

    what: str
    promised: str
    found: str
    cause: str = ""
    """The likely cause, where the numbers show one."""

    def __str__(self) -> str:
        return f"{self.what}: promised {self.promised}, found {self.found}" + (f": {self.cause}" if self.cause else "")


class Trace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of one training that the gate compares."""

    loss: list[float]
    """Mean over ranks, of every step."""
    grad_norm: list[float | None] = []
    """Global gradient norm before clipping, of every step."""
    moved: dict[str, float] = {}
    """Module -> mean distance that its parameters moved in the warm-up steps."""
    outputs: dict[str, float] = {}
    """Module -> mean magnitude of its output in the first step, in the order of the forward pass."""


class Reference(Trace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reference run's training, as the supervisor hands it to the runs after it."""

    path: str
    """Folder of its attempt below the study's."""
    record: str
    """sha256 of its record."""


REFERENCE = "reference.json"
"""Name of the file beside a spec that holds the `Reference` of the run."""


def trace_of(measured: Measured) -> Trace:
    """The comparable part of a record's numbers."""
    return Trace(
        loss=list(measured.loss), grad_norm=list(measured.grad_norm), moved=measured.moved, outputs=measured.outputs
    )


def same_training(spec: RunSpec) -> str:
    """Key of everything that decides the losses, except engine and numerics. Runs with equal keys are comparable."""
    optimizer = spec.optimizer
    return digest(
        {
            "model": [spec.model.config, spec.model.weights, spec.model.pretrained, spec.model.seed],
            "data": spec.data,
            "world_size": spec.platform.world_size,
            "optimizer": [
                optimizer.learning_rate,
                optimizer.betas,
                optimizer.epsilon,
                optimizer.weight_decay,
                optimizer.clip_norm,
            ],
        }
    )


def numerics_mismatches(spec: RunSpec, found: Found) -> list[Mismatch]:
    """Dtypes and optimizer class that differ from the spec's; a tensor the engine does not hold cannot differ."""
    numerics = spec.numerics
    promised = {
        "parameter": numerics.parameter,
        "compute": numerics.compute,
        "reduce": numerics.reduce,
        "gradient": numerics.accumulate,
        "master": numerics.master,
        "optimizer_state": numerics.optimizer_state,
        "optimizer_class": OPTIMIZER_CLASSES[spec.optimizer.implementation],
    }
    pairs = ((what, wanted, getattr(found, what)) for what, wanted in promised.items())
    return [Mismatch(what, wanted, real) for what, wanted, real in pairs if real is not None and real != wanted]


def token_mismatches(spec: RunSpec, tokens_per_step: int) -> list[Mismatch]:
    """Tokens that all ranks really trained on in one step, against the spec's."""
    if tokens_per_step == spec.tokens_per_step:
        return []
    return [Mismatch("tokens_per_step", str(spec.tokens_per_step), str(tokens_per_step))]


def batch_mismatches(sums: Sequence[Sequence[int]]) -> list[Mismatch]:
    """Ranks that train on the batches of another one, or on one batch all the time.

    `sums` holds one checksum per batch, by rank, in the order of training. Two single batches may be equal by chance.
    """
    own = "batches of its own"
    for rank, row in enumerate(sums):
        if row and row in sums[:rank]:
            found = f"those of rank {sums.index(row)}"
            return [Mismatch(f"data of rank {rank}", own, found, "one rank's data is repeated")]
        if len(row) > 1 and len(set(row)) == 1:
            return [Mismatch(f"data of rank {rank}", own, f"one batch {len(row)} times", "a batch is repeated")]
    return []


def update_mismatches(moved: dict[str, float], steps: int) -> list[Mismatch]:
    """Modules whose parameters the warm-up steps left as they were."""
    still = [module for module, distance in moved.items() if not distance > 0]
    if not still:
        return []
    everything = len(still) == len(moved)
    found = f"no change of {'any parameter' if everything else ', '.join(still)} in {steps} steps"
    cause = "the optimizer updates nothing" if everything else f"{', '.join(still)} is frozen"
    return [Mismatch("update", "that every module learns", found, cause)]


def reference_mismatches(spec: RunSpec, found: Trace, reference: Trace) -> list[Mismatch]:
    """Where a training departs from the reference's, most telling first.

    `skewed` data is judged as studies of 2026 were: its loss hardly falls, so only the losses themselves are compared.
    """
    if spec.data.tokens == "skewed":
        return _loss_mismatches(spec, found.loss, reference.loss)
    steps = min(len(found.loss), len(reference.loss), max(spec.protocol.warmup_steps, spec.protocol.parity_steps))
    if steps == 0:
        return []
    return [
        *_first_loss(spec, found, reference),
        *_first_norm(spec, found, reference),
        *_moved(found, reference),
        *(_fall(found.loss[:steps], reference.loss[:steps]) if steps > 1 else []),
    ]


def first_loss_tolerance(spec: RunSpec) -> float:
    """Relative difference of the first loss that the rounding of bfloat16 explains."""
    return max(LEAST_TOLERANCE, ROUNDING / math.sqrt(spec.tokens_per_step))


def _first_loss(spec: RunSpec, found: Trace, reference: Trace) -> list[Mismatch]:
    tolerance = first_loss_tolerance(spec)
    pairs = ((m, found.outputs[m], theirs) for m, theirs in reference.outputs.items() if m in found.outputs)
    module = next((m for m, ours, theirs in pairs if relative(ours, theirs) > OUTPUT_TOLERANCE), None)
    if relative(found.loss[0], reference.loss[0]) <= tolerance and module is None:
        return []
    return [
        Mismatch(
            "loss of step 0, before any update",
            f"{reference.loss[0]:.6g} within {tolerance:.3%}",
            f"{found.loss[0]:.6g}",
            f"the first module whose output differs is {module}" if module else "",
        )
    ]


def _first_norm(spec: RunSpec, found: Trace, reference: Trace) -> list[Mismatch]:
    ours, theirs = (trace.grad_norm[0] if trace.grad_norm else None for trace in (found, reference))
    if ours is None or theirs is None or relative(ours, theirs) <= NORM_TOLERANCE:
        return []
    ratio = ours / theirs
    summed = {"ranks": spec.platform.world_size, "micro-steps": spec.data.gradient_accumulation}
    causes = (f"gradients are summed over {n} {what}, not averaged" for what, n in summed.items()
              if n > 1 and relative(ratio, n) <= NORM_TOLERANCE)  # fmt: skip
    return [
        Mismatch(
            "gradient norm of step 0",
            f"{theirs:.6g} within {NORM_TOLERANCE:.0%}",
            f"{ours:.6g}, {ratio:.2f}x the reference's",
            next(causes, ""),
        )
    ]


def _moved(found: Trace, reference: Trace) -> list[Mismatch]:
    # `update_mismatches` reports modules that do not move at all.
    shared = [module for module, distance in found.moved.items() if distance and module in reference.moved]
    ours, theirs = (sum(trace.moved[module] for module in shared) for trace in (found, reference))
    if not (ours and theirs) or relative(ours, theirs) <= MOVED_TOLERANCE:
        return []
    ratio = ours / theirs
    return [
        Mismatch(
            "distance that parameters move in the warm-up steps",
            f"the reference's within {MOVED_TOLERANCE:.0%}",
            f"{ratio:.2f}x the reference's",
            f"as with a learning rate of {ratio:.2f}x",
        )
    ]


def _fall(ours: Sequence[float], theirs: Sequence[float]) -> list[Mismatch]:
    # Compare the mean over steps, because at the end of a fall the last loss alone hides how fast it fell.
    falls = [losses[0] - statistics.fmean(losses[1:]) for losses in (ours, theirs)]
    apart = abs(falls[0] - falls[1]) / max(abs(falls[1]), LEAST_FALL * abs(theirs[0]))
    # This form of the comparison makes a NaN a mismatch too.
    if apart <= FALL_TOLERANCE:
        return []
    last = len(ours) - 1
    return [
        Mismatch(
            f"mean fall of the loss from step 0 to steps 1 to {last}",
            f"{falls[1]:.6g} within {FALL_TOLERANCE:.0%}",
            f"{falls[0]:.6g}, {apart:.0%} apart",
        )
    ]


def _loss_mismatches(spec: RunSpec, losses: Sequence[float], reference: Sequence[float]) -> list[Mismatch]:
    tolerance = spec.protocol.parity_tolerance
    return [
        Mismatch(f"loss of step {i}", f"{reference[i]:.6g} within {tolerance:.2%}", f"{losses[i]:.6g}")
        for i, difference in enumerate(loss_differences(losses, reference, spec.protocol.parity_steps))
        if difference > tolerance
    ]


def relative(found: float, expected: float) -> float:
    """|found - expected| over |expected|; infinite where one is not a finite number."""
    if not (math.isfinite(found) and math.isfinite(expected)):
        return math.inf
    return abs(found - expected) / max(abs(expected), 1e-12)


def loss_differences(losses: Sequence[float], reference: Sequence[float], steps: int) -> list[float]:
    """`relative` difference of the first `steps` losses that both have.

    A step is inside a tolerance when its difference is at most that.
    """
    return [relative(*pair) for pair in list(zip(losses, reference, strict=False))[:steps]]
