"""The published starting point as records: `python -m dtbench.results.published ROOT` writes results/published/.

Figures of the two published tables (Qwen2.5-3B, bf16, micro-batch 1, sequence 2048, 4 GPUs, median of 15
steps, one run). What the source does not give stays null; outcomes were read off its text.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.contract.files import write_atomically
from dtbench.study.matrix import Matrix, load_matrix
from dtbench.study.cell import at
from harness.contract.outcome import Diagnosis, Evidence
from harness.contract.measured import Measured, Memory
from harness.contract.outcome import REMEDIES
from harness.contract.heartbeat import RankExit
from harness.contract.record import RECORD_VERSION, Record, Try
from harness.contract.spec import RunSpec
from harness.contract.units import GB

SOURCE = "published starting point: DeepSpeed ZeRO and FSDP2 on 4 GPUs, defaults, one run of 15 steps"
A100, L4 = "a100-40gb-x4", "l4-x4"
REMEDY = "expandable-segments"


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of a published table."""

    tokens_per_s: float
    step_ms: float
    peak_gb: float
    nccl_share: float


TABLES: dict[tuple[str, str], Figures] = {
    (A100, "fsdp2-noreshard"): Figures(17449, 469.5, 13.99, 0.261),
    (A100, "fsdp2-reshard"): Figures(14936, 548.5, 13.34, 0.277),
    (A100, "fsdp2-reshard-offload"): Figures(1687, 4855.7, 7.68, 0.164),
    (A100, "zero-1"): Figures(16642, 492.2, 22.33, 0.161),
    (A100, "zero-2"): Figures(17124, 478.4, 20.14, 0.173),
    (A100, "zero-3"): Figures(8151, 1005.0, 18.18, 0.427),
    (A100, "zero-3-offload"): Figures(2615, 3133.1, 6.69, 0.355),
    (L4, "fsdp2-noreshard"): Figures(1761, 4651.6, 13.99, 0.467),
    (L4, "fsdp2-reshard"): Figures(1218, 6723.9, 13.34, 0.511),
    (L4, "zero-2"): Figures(1923, 4260.5, 20.14, 0.502),
    (L4, "zero-3"): Figures(2290, 3577.2, 18.17, 0.475),
    (L4, "zero-3-offload"): Figures(1405, 5829.7, 6.69, 0.391),
}

LAUNCHER = Diagnosis(
    outcome="launcher_args",
    confidence="high",
    evidence=(Evidence(file="source", line=0, text="exit code 2: the deepspeed launcher passes --local_rank=N"),),
    sentence="The deepspeed launcher passed --local_rank=N, which the script did not accept.",
)


@dataclass(frozen=True, slots=True)
class Death:
    """One try that died, as the source tells it."""

    outcome: str
    text: str
    exit_code: int | None = None
    signal: str | None = None
    collectives: int | None = None
    """Collectives completed before it died."""
    peak_gb: float | None = None

    def diagnosis(self) -> Diagnosis:
        """The death as a diagnosis whose one piece of evidence is the source's own statement."""
        return Diagnosis(
            outcome=self.outcome,
            confidence="medium",
            evidence=(Evidence(file="source", line=0, text=self.text),),
            sentence=self.text,
        )


OOM_ZERO_0 = Death("cuda_oom", "11.50 GiB asked, 9.48 GiB free of 39.49 GiB, 30.01 GiB in use")
OOM_ZERO_1 = Death("cuda_oom", "out of memory at initialization", collectives=0, peak_gb=21.35)
WEDGE_ZERO_2 = Death("collective_wedge", "wedged at collective 456", collectives=456)
WEDGE_ZERO_3 = Death(
    "collective_wedge",
    "wedged at collective 4016: ALLREDUCE of 1 element, 600059 ms, exit code -6",
    signal="SIGABRT",
    collectives=4016,
)
OOM_ZERO_3 = Death(
    "cuda_oom_fragmentation",
    "926 MiB asked, 439 MiB free of 22.03 GiB, 15.46 GiB allocated, 5.77 GiB reserved but unallocated",
)

DEATHS: dict[tuple[str, str], list[list[Death]]] = {
    (A100, "zero-0"): [[OOM_ZERO_0]],
    (L4, "zero-1"): [[OOM_ZERO_1]],
    (L4, "zero-2"): [[WEDGE_ZERO_2]],
    (L4, "zero-3"): [[WEDGE_ZERO_3], [OOM_ZERO_3]],
}
"""Cell -> attempts -> tries that died; where a table row exists the last attempt then ran with the remedy."""

REFUSED_FIRST = frozenset((A100, f"zero-{name}") for name in ("0", "1", "2", "3", "3-offload"))
"""The source counts five ZeRO Jobs whose first launch the launcher's argument ended; only the A100 set has five."""


def records(matrix: Matrix) -> list[Record]:
    """Every attempt of the published study as a record."""
    found = []
    for run in matrix.runs:
        cell = (run.platform.name, run.identity.config)
        number = 1
        if cell in REFUSED_FIRST:
            found.append(_refused(at(run, attempt=number)))
            number += 1
        attempts = DEATHS.get(cell, [[]])
        for index, deaths in enumerate(attempts):
            figures = TABLES.get(cell) if index == len(attempts) - 1 else None
            found.append(_attempt(at(run, attempt=number + index), deaths, figures))
    return found


def _refused(spec: RunSpec) -> Record:
    exits = [RankExit(rank=rank, exit_code=2) for rank in range(spec.platform.world_size)]
    note = "The source counts five ZeRO Jobs that first died so; the A100 set is the only one with five."
    return _record(spec, [_try(1, LAUNCHER, exits=exits)], None, {}, (note,))


def _attempt(spec: RunSpec, deaths: Sequence[Death], figures: Figures | None) -> Record:
    tries = []
    for index, death in enumerate(deaths, 1):
        exits = [RankExit(rank=0, exit_code=None, signal=death.signal)] if death.signal else []
        tries.append(_try(index, death.diagnosis(), exits=exits, peak_gb=death.peak_gb))
    published: dict[str, Any] = {}
    if any(death.collectives is not None for death in deaths):
        published["collectives_before_death"] = [death.collectives for death in deaths]
    if figures is None:
        return _record(spec, tries, None, published)
    remedy = REMEDY if deaths else None
    tries.append(_try(len(tries) + 1, Diagnosis(outcome="ok", confidence="high"), remedy=remedy))
    return _record(spec, tries, _measured(spec, figures), published | {"nccl_share": figures.nccl_share})


def _measured(spec: RunSpec, figures: Figures) -> Measured:
    return Measured(
        step_time_p50_s=round(figures.step_ms / 1000, 6),
        tokens_per_step=spec.tokens_per_step,
        tokens_per_s=figures.tokens_per_s,
        memory=Memory(peak_allocated_bytes=round(figures.peak_gb * GB)),
    )


def _try(
    index: int,
    diagnosis: Diagnosis,
    *,
    exits: Sequence[RankExit] = (),
    remedy: str | None = None,
    peak_gb: float | None = None,
) -> Try:
    return Try(
        index=index,
        remedy=remedy,
        environment=REMEDIES[remedy].environment if remedy else {},
        diagnosis=diagnosis,
        exits=tuple(exits),
        launcher_exit_code=None,
        wall_s=None,
        last_step=None,
        peak_allocated_bytes=round(peak_gb * GB) if peak_gb else None,
    )


def _record(
    spec: RunSpec,
    tries: Sequence[Try],
    measured: Measured | None,
    published: dict[str, Any],
    notes: tuple[str, ...] = (),
) -> Record:
    return Record(
        record_version=RECORD_VERSION,
        source=SOURCE,
        spec=spec,
        spec_hash=spec.hash(),
        outcome=tries[-1].diagnosis.outcome,
        diagnosis=tries[-1].diagnosis,
        started_at=None,
        ended_at=None,
        wall_s=None,
        tries=tuple(tries),
        measured=measured,
        resolved=None,
        environment=None,
        files=(),
        notes=notes,
        published=published,
    )


def main(root: Path) -> None:
    """Write the records, replacing those of an earlier call."""
    matrix = load_matrix("published", root)
    results = root / "results" / matrix.study.name
    for platform in matrix.study.platforms:
        shutil.rmtree(results / platform, ignore_errors=True)
    for record in records(matrix):
        text = json.dumps(record.to_json(), indent=1)
        write_atomically(results / record.spec.path() / "record.json", text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
