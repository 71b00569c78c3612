"""One training process group, rank by rank: build, warm up, gate, time, take inventory."""

import math
import platform as host_platform
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs

from harness.contract.heartbeat import HeartbeatWriter
from harness.contract.measured import Found, Memory, RankResult, State
from harness.contract.parity import (
    Mismatch,
    Reference,
    Trace,
    batch_mismatches,
    numerics_mismatches,
    reference_mismatches,
    token_mismatches,
    update_mismatches,
)
from harness.engines.base import Context, Engine, build_engine
from harness.engines.checkpoint import finish_loading
from harness.engines.kernels import liger_modules
from harness.engines.loop import Hook, Loop
from harness.engines.model import decoder_blocks, expert_blocks, named_stages, silenced_dropout
from harness.measure import clock, nvml
from harness.measure.ledger import predict, state_bytes_per_parameter
from harness.measure.memory import Gauge, PhasePeaks, take_inventory
from harness.measure.preflight import preflight
from harness.measure.trace import CompiledBlocks, Movement, Outputs, Routing
from harness.measure.traffic import TrafficError, profiled_pass

_PACKAGES = ("torch", "transformers", "deepspeed", "triton", "liger-kernel", "numpy")


class Training:
    """Holds what one rank learns on its way to a RankResult."""

    def __init__(
        self, context: Context, heartbeat: HeartbeatWriter, gauge: Gauge, hook: Hook | None, startup: clock.Laps
    ) -> None:
        self._context, self._heartbeat, self._gauge = context, heartbeat, gauge
        self._spec = context.spec
        self._hook = hook
        self._startup = startup
        self._found: Found | None = None
        self._state: State | None = None
        self._memory: Memory | None = None
        self._warmup_s: list[float] = []
        self._steps_s: list[float] = []
        self._window_s = 0.0
        self._energy_j: float | None = None
        self._profile: dict[str, Any] | None = None
        self._preflight: dict[str, Any] | None = None
        self._moved: dict[str, float] = {}
        self._outputs: dict[str, float] = {}
        self._compiled_share: float | None = None
        self._busiest_experts: dict[str, float] = {}
        self._loading: dict[str, float] = {}

    def check_hardware(self) -> None:
        """Probe device and pipe, when the protocol asks for it."""
        if self._spec.protocol.preflight:
            self._preflight = preflight(self._context.device, self._spec.platform)
            self._startup.end("preflight")

    def build(self) -> None:
        """Build the engine and its loop."""
        self.engine: Engine = build_engine(self._context)
        self._loading = finish_loading(self._context.loading)
        clock.barrier(self._context.device)
        self.loop = Loop(self._context, self.engine, self._heartbeat, self._gauge.now, self._hook)
        self._startup.end("build")

    def warm_up(self) -> None:
        """Run the warm-up steps, reading dtypes and state in the last of them."""
        steps = self._spec.protocol.warmup_steps
        self.loop.tokens.prepare(0, steps + self._spec.protocol.timed_steps)
        device, model = self._context.device, self.engine.model
        watch = CompiledBlocks(decoder_blocks(model))
        blocks = set(map(id, decoder_blocks(model)))
        names = [name for name, module in model.named_modules() if id(module) in blocks]
        movement = Movement(self.engine.parts, names, self._parameters, device)
        outputs = Outputs({} if self._compiled else named_stages(model), device)
        marks = clock.StepMarks(device, steps)
        marks.mark()
        for step in range(steps):
            last = step + 1 == steps
            with outputs if step == 0 else nullcontext(), watch if self._compiled and last else nullcontext():
                self.loop.step(self._look if last else None)
            marks.mark()
        clock.synchronize(device)
        self._warmup_s = marks.seconds()
        self._compiled_share = watch.share
        self._moved, self._outputs = movement.distances() if steps else {}, outputs.means()
        self.loop.watch_batches = False
        self._startup.end("warmup")

    def mismatches(self, reference: Reference | None = None) -> list[Mismatch]:
        """Promises broken so far, the same list on every rank. Compares with the reference's training if one is given.

        Raises FloatingPointError when a loss is not a finite number: then there is nothing to compare.
        """
        tokens = torch.tensor(self.loop.tokens_seen, device=self._context.device)
        dist.all_reduce(tokens)
        found = numerics_mismatches(self._spec, self._found) if self._found else []
        if self.loop.next_step:
            found += token_mismatches(self._spec, int(tokens) // self.loop.next_step)
        if self._moved:
            found += update_mismatches(self._moved, self._spec.protocol.warmup_steps)
        found += batch_mismatches(self._checksums())
        trace, stated = self.trace(), self._spec.protocol.reference_loss
        theirs = reference or (Trace(loss=list(stated)) if stated else None)
        return found + (reference_mismatches(self._spec, trace, theirs) if theirs else [])

    def trace(self) -> Trace:
        """What later runs of the same training are compared with; equal on every rank. Raises like `mismatches`."""
        own = self.loop.losses()
        losses = torch.tensor(own, dtype=torch.float64, device=self._context.device)
        if own:
            dist.all_reduce(losses)
        mean = (losses / self._context.world_size).tolist()
        for step, loss in enumerate(mean):
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"loss is not finite: {loss} over all ranks at step {step}, {own[step]} on this one"
                )
        return Trace(loss=mean, grad_norm=self.loop.norms(), moved=self._moved, outputs=self._outputs)

    def _checksums(self) -> list[list[int]]:
        """Checksums of the batches so far, by rank."""
        own = self.loop.checksums().to(self._context.device)
        if not len(own):
            return []
        everyone = [torch.empty_like(own) for _ in range(self._context.world_size)]
        dist.all_gather(everyone, own)
        return [row.tolist() for row in everyone]

    def time(self) -> None:
        """The timed window: nothing but steps between its edges."""
        meter = nvml.meter(_uuid(self._context.device))
        with clock.collector_paused():
            self._gauge.open_window()
            before_j = meter()
            self._startup.end("gate")
            self._window_s, self._steps_s = clock.timed(
                self._context.device, self._spec.protocol.timed_steps, self.loop.step
            )
            after_j = meter()
            self._memory = self._gauge.close_window()
        self._energy_j = None if before_j is None or after_j is None else after_j - before_j

    def collect(self) -> None:
        """Steps outside the timed window. On CUDA the first one finds the phase of the memory peak; the last one counts
        the state."""
        self._heartbeat.beat(self.loop.next_step, "collect")
        self.loop.tokens.prepare(self.loop.next_step, 2)
        if self._context.device.type == "cuda" and self._memory is not None:
            peaks = PhasePeaks(self._context.device)
            self.loop.step(at_phase=peaks.enter)
            self._memory = structs.replace(self._memory, peak_phase=peaks.largest())
        experts = {name: block.experts for name, block in expert_blocks(self.engine.model).items()}
        with Routing({} if self._compiled else experts, self._context.device) as routing:  # type: ignore[arg-type]
            self.loop.step(self._take_inventory)
        self._busiest_experts = routing.busiest()

    def profile(self) -> None:
        """The profiled pass, on CUDA only. If it fails, the reason takes the place of its figures."""
        steps = self._spec.protocol.profiled_steps
        if steps == 0 or self._context.device.type != "cuda":
            return
        self._heartbeat.beat(self.loop.next_step, "profile")
        self.loop.tokens.prepare(self.loop.next_step, steps + 1)
        try:
            self._profile = profiled_pass(self._context.device, self._context.world_size, steps, self.loop.step)
        except TrafficError as error:
            print(f"PROFILE FAILED: {error}", flush=True)
            self._profile = {"error": str(error)}

    def result(self) -> RankResult:
        """Everything measured."""
        steps, ledger = self._spec.total_steps, predict(self._spec)
        if self._memory is None or self._found is None:
            raise RuntimeError("result: asked for before the timed window; call time and collect first")
        return RankResult(
            rank=self._context.rank,
            world_size=self._context.world_size,
            parameters=self._parameters,
            window_s=self._window_s,
            energy_j=self._energy_j,
            step_times_s=self._steps_s,
            warmup_step_times_s=self._warmup_s,
            loss=self.loop.losses()[:steps],
            grad_norm=self.loop.norms()[:steps],
            memory=self._memory,
            state=self._state,
            found=self._found,
            startup_s=self._startup.seconds,
            resolved=self.engine.resolved()
            | {"dropout_set_to_0": silenced_dropout(self._spec)}
            | {"liger_modules": liger_modules(self.engine.model)},
            versions=versions(),
            device_name=device_name(self._context.device),
            moved=self._moved,
            outputs=self._outputs,
            compiled_share=self._compiled_share,
            busiest_experts=self._busiest_experts,
            loading=self._loading,
            profile=self._profile,
            preflight=self._preflight,
            ledger=ledger.to_json() if ledger else None,
        )

    def _look(self) -> None:
        self._found = self.engine.found()

    def _take_inventory(self) -> None:
        self._look()
        self._state = take_inventory(
            ((h.role, h.tensor) for h in self.engine.holdings()),
            self._parameters,
            state_bytes_per_parameter(self._spec),
        )

    @property
    def _compiled(self) -> bool:
        """Whether torch.compile is in use: a hook would make it compile everything twice."""
        return any(module._compiled_call_impl is not None for module in self.engine.model.modules())

    @property
    def _parameters(self) -> int:
        return self.engine.parameters


def versions() -> dict[str, str]:
    """Versions of what decides speed."""
    found = {"python": host_platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        if torch.cuda.is_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def _uuid(device: torch.device) -> str | None:
    """NVML's name of a CUDA device: its own numbering ignores CUDA_VISIBLE_DEVICES."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None


def device_name(device: torch.device) -> str:
    """The card's name, or the CPU's model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return host_platform.processor() or host_platform.machine()
