"""One attempt: its tries and its record, which is written whatever happens to the ranks."""

import datetime
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from harness.contract.heartbeat import RankExit
from harness.contract.measured import Measured, RankResult
from harness.contract.outcome import REMEDIES, Diagnosis, Remedy, outcome
from harness.contract.parity import REFERENCE
from harness.contract.record import RECORD_VERSION, Record, Try
from harness.contract.spec import RunSpec, read_spec
from harness.diagnosis import diagnose_folder
from harness.diagnosis.memory import read_shortage
from harness.search.tuned import Choice, tune
from harness.supervisor import collect, folder, launch, processes
from harness.supervisor.environment import describe_environment
from harness.supervisor.extensions import drop_abandoned_locks
from harness.supervisor.nodes.leader import Nodes
from harness.supervisor.nodes.link import network_variables
from harness.supervisor.processes import Signals
from harness.supervisor.progress import Teller, say
from harness.supervisor.telemetry import Telemetry
from harness.supervisor.watch import Ending, watch

PORT_CHOICES = 3
"""Launches of one try, in case another process takes the chosen port before the ranks bind it."""


@dataclass
class Attempt:
    """Runs one spec in one folder."""

    spec: RunSpec
    out: Path
    signals: Signals
    teller: Teller
    until_s: float | None = None
    """Monotonic time at which the caller's budget ends and the attempt is cut short."""
    pod: int = 1
    nodes: Nodes | None = None
    """The other nodes; None for a run on one."""
    tries: list[Try] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    results: list[RankResult] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    window_s: tuple[float, float] | None = None
    deadline_hit: bool = False
    choice: Choice | None = None
    """Result of the tuned arm's trials; None without trials."""

    def run(self) -> Record:
        """Try, remedy, merge; returns the record, not yet written."""
        started_at, started_s = _now(), time.monotonic()
        if self.spec.faults:
            kinds = ", ".join(f.kind for f in self.spec.faults)
            self.notes.append(f"FAULTS INJECTED ({kinds}): this is a test of failure, never a measurement")
            say(self.notes[-1])
        budget_s = self.until_s or float("inf")
        absent = self.nodes.gather(self.signals, budget_s) if self.nodes else None
        # The deadline counts from here, because a cluster may take minutes to create a node.
        deadline_s = min(time.monotonic() + self.spec.protocol.deadline_s, budget_s)
        if self.spec.protocol.trials and absent is None:
            self._tune(deadline_s)
        with Telemetry(self.spec, self.out / "telemetry.jsonl") as telemetry:
            if absent is None:
                self._tries(deadline_s)
            else:
                self._end_before_start(absent, time.monotonic() - started_s)
        diagnosis = self.tries[-1].diagnosis
        measured = self._measured(diagnosis, telemetry)
        folder.tidy(self.out)
        first = self.results[0] if self.results else None
        if silenced := first and first.resolved.get("dropout_set_to_0"):
            self.notes.append(f"dropout is 0 in the arm {self.spec.identity.arm}: the model's own is {silenced}")
        return Record(
            record_version=RECORD_VERSION,
            source=None,
            spec=self.spec,
            spec_hash=self.spec.hash(),
            outcome=diagnosis.outcome,
            diagnosis=diagnosis,
            started_at=started_at,
            ended_at=_now(),
            wall_s=time.monotonic() - started_s,
            tries=tuple(self.tries),
            measured=measured,
            resolved=first.resolved if first else None,
            environment=describe_environment(
                self.environment, first.versions if first else {}, first.device_name if first else None
            ),
            files=folder.list_files(self.out),
            pod=self.pod,
            notes=tuple(self.notes),
        )

    @property
    def cut(self) -> bool:
        """Whether the caller's budget ended the attempt, not the spec's own deadline."""
        return self.until_s is not None and time.monotonic() >= self.until_s and self.deadline_hit

    def _end_before_start(self, diagnosis: Diagnosis, wall_s: float) -> None:
        self.tries.append(
            Try(
                index=1,
                remedy=None,
                environment={},
                diagnosis=diagnosis,
                exits=(),
                launcher_exit_code=None,
                wall_s=wall_s,
                last_step=None,
            )
        )

    def _tune(self, deadline_s: float) -> None:
        """Run the trials; the tries then use the settings that they chose."""
        self.choice = tune(self.spec, self.out, self._trial, deadline_s, lambda: bool(self.signals.cancelled), say)
        folder.write_spec(self.out / folder.CHOSEN, self.choice.spec)
        self.notes.append(self.choice.note)
        say(f"  {self.choice.note}")

    def _trial(self, spec: RunSpec, place: Path, until_s: float) -> Record:
        place.mkdir()
        folder.prepare(place, spec)
        if (self.out / REFERENCE).exists():
            shutil.copyfile(self.out / REFERENCE, place / REFERENCE)
        teller = self.teller.inner(spec)
        record = Attempt(
            spec=spec, out=place, signals=self.signals, teller=teller, until_s=until_s, nodes=self.nodes
        ).run()
        folder.write_record(place, record)
        return record

    def _tries(self, deadline_s: float) -> None:
        remedy = None
        while True:
            diagnosis = self._try(remedy, deadline_s)
            again = remedy_for(diagnosis, self.spec, self.environment)
            if remedy or again is None or self.signals.cancelled or time.monotonic() >= deadline_s:
                return
            say(f"  {diagnosis.outcome}: {diagnosis.sentence}")
            say(f"  trying once more with remedy {again.name}: {again.why}")
            remedy = again

    def _try(self, remedy: Remedy | None, deadline_s: float) -> Diagnosis:
        index = len(self.tries) + 1
        extra = remedy.environment if remedy else {}
        place = self.out / f"try-{index}"
        ending = self._launch(place, extra, deadline_s)
        world_size = self.spec.platform.world_size
        exits = collect.read_exits(place, world_size)
        self.results = collect.read_results(place, world_size)
        diagnosis = diagnose_folder(
            place,
            exits=exits,
            launcher_exit_code=ending.launcher_exit_code,
            completed=bool(self.results),
            # A rank that was killed in its teardown, after it had written its result, counts as finished.
            cancelled=None if self.results or ending.cancelled == "node" else ending.cancelled,
        )
        if self.nodes and not self.results and ending.cancelled in (None, "node"):
            diagnosis = self.nodes.lost() or diagnosis
        if self.nodes and ending.stall and ending.progress.step is None and not diagnosis.evidence:
            diagnosis = self.nodes.never_met(ending.stall.silent_s, frozenset(ending.progress.last))
        self._note_late_ends(exits)
        self.tries.append(
            Try(
                index=index,
                remedy=remedy.name if remedy else None,
                environment=dict(extra),
                diagnosis=self._checked(diagnosis),
                exits=exits,
                launcher_exit_code=ending.launcher_exit_code,
                wall_s=ending.wall_s,
                last_step=ending.progress.step,
                peak_allocated_bytes=ending.progress.peak_allocated_bytes,
            )
        )
        return self.tries[-1].diagnosis

    def _launch(self, place: Path, extra: dict[str, str], deadline_s: float) -> Ending:
        for _ in range(PORT_CHOICES):
            folder.empty(place)
            self.environment = launch.rank_environment(self.spec, place, extra)
            spec_path = self.out / (folder.CHOSEN if self.choice else folder.SPEC)
            meeting = self._meet(place, spec_path, extra) if self.nodes else None
            command = launch.launcher_command(self.spec, spec_path, place, self.environment, meeting)
            drop_abandoned_locks()
            started_s = time.time()
            launcher = processes.start(command, self.environment, place / "launcher.log")
            ending = watch(launcher, self.spec, place, deadline_s, self.signals, self.teller.progress, self.nodes)
            drop_abandoned_locks(started_s)
            if self.spec.faults or ending.cancelled or not launch.port_was_taken(place):
                break
            self.notes.append("the chosen port was taken by another process; launched again with another")
        self.deadline_hit = ending.cancelled == "deadline"
        self.window_s = ending.progress.window_s
        if ending.stall:
            self.notes.append(f"stalled: {ending.stall.sentence()}")
        return ending

    def _meet(self, place: Path, spec_path: Path, extra: dict[str, str]) -> launch.Meeting:
        """Have the other nodes start their ranks of this try; returns where their launchers and ours meet."""
        assert self.nodes is not None
        self.environment = network_variables(self.nodes.own_address()) | self.environment
        meeting = launch.Meeting(node=0, host=self.nodes.place.host, port=launch.free_port())
        reference = self.out / REFERENCE
        self.nodes.launch(
            read_spec(spec_path), place.name, extra, meeting.port, reference.read_text() if reference.exists() else None
        )
        return meeting

    def _note_late_ends(self, exits: tuple[RankExit, ...]) -> None:
        if not self.results:
            return
        for end in exits:
            if end.exit_code != 0:
                how = end.signal or (f"exit code {end.exit_code}" if end.exit_code is not None else "no word")
                self.notes.append(f"rank {end.rank} ended with {how} after it had written its result")

    def _checked(self, diagnosis: Diagnosis) -> Diagnosis:
        spot = collect.not_finite(self.results)
        if diagnosis.outcome != "ok" or spot is None:
            return diagnosis
        sentence = f"{outcome('numerics').sentence} Rank {spot[0]}, step {spot[1]}."
        return Diagnosis(outcome="numerics", confidence="high", culprit_rank=spot[0], sentence=sentence)

    def _measured(self, diagnosis: Diagnosis, telemetry: Telemetry) -> Measured | None:
        if self.spec.protocol.ladder:
            # A ladder's steps are too few to time. Its rungs count, also when it ended out of memory.
            rungs = collect.read_rungs(self.out / f"try-{len(self.tries)}", self.spec, diagnosis)
            return collect.measured_ladder(self.results, rungs)
        measured = None
        if diagnosis.outcome == "ok":
            throttle, sm_mhz = telemetry.throttle(self.window_s), telemetry.sm_mhz(self.window_s)
            measured = collect.merge(self.results, self.spec, throttle, sm_mhz)
        return structs.replace(measured or Measured(), search=self.choice.trials) if self.choice else measured


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def remedy_for(diagnosis: Diagnosis, spec: RunSpec, environment: dict[str, str]) -> Remedy | None:
    """Name of the remedy to try next; None when there is none, it is switched off or was applied already.

    A plain `collective_wedge` has no cure. Near the card's limit a wedge may hide an out-of-memory error, which is then
    its runner-up, so it gets the cure of that. An out-of-memory error also gets the cure of fragmentation when
    fragments and free memory together would have held the request, even if too little is fragmented to call that the
    cause. A try costs one start and tells more than the message.
    """
    if spec.protocol.remedies == "off" or diagnosis.outcome == "ok":
        return None
    name = outcome(diagnosis.outcome).remedy
    if name is None and diagnosis.outcome == "collective_wedge" and diagnosis.runner_up is not None:
        name = outcome(diagnosis.runner_up).remedy
    in_pieces = any(read_shortage(line.text).in_pieces for line in diagnosis.evidence)
    if name is None and diagnosis.outcome == "cuda_oom" and in_pieces:
        name = outcome("cuda_oom_fragmentation").remedy
    if name is None:
        return None
    remedy = REMEDIES[name]
    in_force = all(environment.get(key) == value for key, value in remedy.environment.items())
    return None if in_force else remedy
