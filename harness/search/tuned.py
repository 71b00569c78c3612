"""The tuned arm's search: every trial is a short run of its own; the fastest that ended well is measured in full."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from harness.contract.engines import resolve_settings
from harness.contract.measured import Trial, settings_text
from harness.contract.record import Record
from harness.contract.spec import RunSpec

RunTrial = Callable[[RunSpec, Path, float], Record]
"""Runs a trial's spec in a folder, at most until a monotonic time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The result of the trials."""

    spec: RunSpec
    """The spec to measure: the given one with the kept settings, and no trials."""
    trials: list[Trial]
    """Every trial, for the record."""
    note: str


def tune(
    spec: RunSpec,
    out: Path,
    run: RunTrial,
    deadline_s: float,
    cancelled: Callable[[], bool],
    say: Callable[[str], None] = print,
) -> Choice:
    """Run every trial of `spec.protocol.trials` in its own folder `trial-<k>` below `out`.

    Each trial gets an equal share of the time that is left, and the measured run gets one more share, so that no trial
    uses up the time of another. A trial that fails is a result too. `say` prints one line of progress.
    """
    trials: list[Trial] = []
    count = len(spec.protocol.trials)
    # Build all specs first, so that an impossible setting is refused before any trial starts.
    specs = [trial_spec(spec, settings) for settings in spec.protocol.trials]
    for index, settings in enumerate(spec.protocol.trials, start=1):
        left_s = deadline_s - time.monotonic()
        if cancelled() or left_s <= 0:
            break
        say(f"  trial {index}/{count}: {settings_text(settings)}")
        until_s = time.monotonic() + left_s / (count - index + 2)
        record = run(specs[index - 1], out / f"trial-{index}", until_s)
        trials.append(_entry(settings, record))
        say(f"  trial {index}/{count}: {_result(trials[-1])}")
    best = max(filter(_may_win, trials), key=lambda t: t.tokens_per_s or 0, default=None)
    trials = [structs.replace(trial, kept=trial is best) for trial in trials]
    return Choice(spec=chosen_spec(spec, best.settings if best else {}), trials=trials, note=_note(trials, count))


def trial_spec(spec: RunSpec, settings: dict[str, Any]) -> RunSpec:
    """The short run of one trial: warm-up as in the measured run, `trial_steps` timed, nothing after them."""
    protocol = structs.replace(
        spec.protocol,
        trials=(),
        timed_steps=spec.protocol.trial_steps,
        profiled_steps=0,
        preflight=False,
        remedies="off",
    )
    return structs.replace(chosen_spec(spec, settings), protocol=protocol)


def chosen_spec(spec: RunSpec, settings: dict[str, Any]) -> RunSpec:
    """The spec with these engine settings over its own, and no trials left."""
    engine = spec.engine
    merged = resolve_settings(engine.name, engine.settings | settings, "protocol.trials")
    return structs.replace(
        spec,
        engine=structs.replace(engine, settings=merged),
        protocol=structs.replace(spec.protocol, trials=()),
    )


def _may_win(trial: Trial) -> bool:
    """Whether the trial ended well and its settings took effect: where compilation gave up, most blocks ran eagerly."""
    return bool(trial.tokens_per_s) and (trial.compiled_share is None or trial.compiled_share == 1)


def _entry(settings: dict[str, Any], record: Record) -> Trial:
    measured = record.measured if record.outcome == "ok" else None
    memory = measured.memory if measured else None
    return Trial(
        settings=settings,
        outcome=record.outcome,
        sentence=record.diagnosis.sentence,
        tokens_per_s=measured.tokens_per_s if measured else None,
        step_time_s=measured.step_time_s if measured else None,
        peak_allocated_bytes=memory.peak_allocated_bytes if memory else None,
        wall_s=record.wall_s,
        compiled_share=measured.compiled_share if measured else None,
        kept=False,
    )


def _result(trial: Trial) -> str:
    speed = trial.tokens_per_s
    if speed is None:
        return f"{trial.outcome}: {trial.sentence}"
    return f"ok: {speed:,.0f} tok/s{'' if _may_win(trial) else f', not kept: {_refusal(trial)}'}"


def _refusal(trial: Trial) -> str:
    return f"torch compiled {trial.compiled_share or 0:.0%} of the blocks and gave up on the rest"


def _note(trials: list[Trial], count: int) -> str:
    kept = next((t for t in trials if t.kept), None)
    ran = f"{len(trials)} of {count} trials ran"
    refused = [f"{settings_text(t.settings)}: {_refusal(t)}" for t in trials if t.tokens_per_s and not _may_win(t)]
    ran += "".join(f"; not kept: {text}" for text in refused)
    if kept is None:
        return f"tuned: no trial can be kept ({ran}); measured with the settings as given"
    return f"tuned: kept {settings_text(kept.settings)} ({kept.tokens_per_s:,.0f} tok/s in its trial; {ran})"
