"""What `dtbench fit` answers for one config: peak, band, verdict, largest micro-batch, fewest GPUs."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from msgspec.structs import replace

from harness.contract.engines import CONFIGS, ENGINES, parse_settings, resolve_settings
from harness.contract.engines.memory import Ledger
from harness.contract.frontier import PACKED
from harness.contract.platform import Platform
from harness.contract.spec import (
    SPEC_VERSION,
    AdamW,
    Arm,
    Data,
    Engine,
    Identity,
    Model,
    Optimizer,
    Protocol,
    RunSpec,
)
from harness.measure.ledger import predict
from harness.measure.shapes import Shape

BAND = 0.03
"""Error of the ledger for the family and settings that stored GPU records hold; tests/fit/test_records.py holds it."""
MEASURED = ("qwen2", "llama", "olmoe")
"""Families with stored GPU records, the last two with activation checkpointing."""
UNMEASURED = {
    "family": (0.15, "no stored GPU record of this family: its terms are counted, not measured"),
    "experts": (0.3, "the router's copies of tokens and uneven experts are estimated"),
    "traced": (0.3, "the family's activations are what its blocks save on a CPU; a GPU's kernels may save others"),
    "counted": (0.5, "the family's activations are estimated from the widths in its config"),
    "checkpointing": (
        0.4,
        "published runs as shipped with activation checkpointing held up to 58% more than predicted; why is unknown",
    ),
}
"""Doubt -> how much it widens the band, as a share of the peak without the state, and why. The state is exact
arithmetic."""
MOST_MICRO_BATCH = 4096
MOST_GPUS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked, apart from the config."""

    model: Model
    shape: Shape
    source: str
    """How the sizes were found: `formula` or `meta device`."""
    gpu: str
    gpus: int
    """All of them, over all nodes."""
    usable_bytes: int
    sequence_length: int
    micro_batch: int
    arm: Arm = "matched"
    gradients: Literal["float32", "engine"] = "float32"
    """Dtype in which equal numerics keep reduced gradients, as in a study."""
    nodes: int = 1

    @property
    def doubts(self) -> dict[str, str]:
        """What widens the band, with the reason."""
        measured = self.model.config["model_type"] in MEASURED
        known = {
            "family": not measured,
            "experts": self.shape.active_experts > 0 and not measured,
            "traced": self.shape.saved is not None,
            "counted": self.source != "formula" and self.shape.saved is None,
            "checkpointing": self.model.activation_checkpointing and self.arm == "defaults",
        }
        return {name: UNMEASURED[name][1] for name, applies in known.items() if applies}

    @property
    def doubt(self) -> float:
        """What `doubts` add to the band, as a part of the peak beyond the state."""
        return sum(UNMEASURED[name][0] for name in self.doubts)

    def error_bytes(self, ledger: Ledger) -> int:
        """Half the width of the band around a predicted peak."""
        return int(BAND * ledger.device_peak + self.doubt * max(0, ledger.device_peak - ledger.state))

    def spec(self, config: str) -> RunSpec:
        """The run that is asked about, as a study would make it."""
        entry = CONFIGS[config]
        engine, ships = ENGINES[entry.engine], self.arm == "defaults"
        native = engine.optimizer("cuda", entry.offloads) if ships else "torch-fused"
        settings = resolve_settings(engine.name, entry.settings)
        numerics = engine.shipped if ships else engine.matched
        if (
            not ships
            and self.gradients == "float32"
            and engine.float32_gradients(parse_settings(engine.name, settings))
        ):
            numerics = replace(numerics, accumulate="float32")
        return RunSpec(
            spec_version=SPEC_VERSION,
            identity=Identity(study="fit", config=config, arm=self.arm, repeat=1, attempt=1),
            platform=Platform(
                name="fit",
                device="cuda",
                world_size=self.gpus,
                accelerator=self.gpu,
                interconnect="unknown",
                nodes=self.nodes,
            ),
            model=self.model,
            data=Data(sequence_length=self.sequence_length, micro_batch=self.micro_batch),
            optimizer=Optimizer(implementation=cast(AdamW, native)),
            numerics=numerics,
            protocol=Protocol(warmup_steps=1, timed_steps=1),
            engine=Engine(name=engine.name, launcher=engine.launcher, settings=settings),
            environment={},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One config's answer. Bytes are of one rank."""

    config: str
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    host_bytes: int
    """State in host memory per rank."""
    parts_bytes: dict[str, int]
    verdict: str
    """`fits`, `close` (only a run can tell) or `does not fit`."""
    largest_micro_batch: int
    """The largest micro-batch whose whole band fits; 0: none."""
    fewest_gpus: int | None
    """The fewest GPUs, sharding as one group, with which the micro-batch surely fits; None: no number is enough."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def answer(question: Question, config: str) -> Answer | None:
    """The answer for one config; None for an engine that predicts nothing."""
    spec = question.spec(config)
    ledger = predict(spec, question.shape)
    if ledger is None:
        return None

    def highest(micro_batch: int, gpus: int, nodes: int) -> int:
        changed = replace(
            spec,
            data=replace(spec.data, micro_batch=micro_batch),
            platform=replace(spec.platform, world_size=gpus, nodes=nodes),
        )
        found = predict(changed, question.shape)
        return found.device_peak + question.error_bytes(found) if found else 0

    sure, error = question.usable_bytes * PACKED, question.error_bytes(ledger)
    low, high = ledger.device_peak - error, ledger.device_peak + error
    return Answer(
        config=config,
        peak_bytes=ledger.device_peak,
        low_bytes=low,
        high_bytes=high,
        host_bytes=ledger.host,
        parts_bytes=_parts(asdict(ledger)),
        verdict=_verdict(low, high, sure),
        largest_micro_batch=_largest(lambda size: highest(size, question.gpus, question.nodes) <= sure),
        fewest_gpus=_fewest(lambda gpus: highest(question.micro_batch, gpus, 1) <= sure),
    )


def _verdict(low: int, high: int, sure: float) -> str:
    if high <= sure:
        return "fits"
    return "close" if low <= sure else "does not fit"


def _parts(found: dict[str, int]) -> dict[str, int]:
    """The ledger's parts by the names that the answer gives them; they belong to three moments and do not add up."""
    return {
        "parameters": found["parameters"],
        "gradients": max(found["gradients"], found["standing_gradients"]),
        "optimizer": found["optimizer"],
        "gathered": found["gathered"],
        "unreduced": found["unreduced"],
        "buffers": found["buckets"] + found["workspace"],
        "activations": found["activations"],
        "logits": found["logits"],
        "update": found["update"],
    }


def _largest(fits: Any) -> int:
    low, high = 0, MOST_MICRO_BATCH + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fewest(fits: Any) -> int | None:
    """Memory falls as ranks are added, except from one to two, where ZeRO-3 begins to gather. So one rank is tried
    separately."""
    if fits(1):
        return 1
    if not fits(MOST_GPUS):
        return None
    low, high = 1, MOST_GPUS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
