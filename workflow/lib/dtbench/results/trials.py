"""The tuned arm's trials as rows: what was tried, how fast each was, which was kept."""

import json
from typing import Any

from dtbench.results.cells import CellResult
from dtbench.results.comparison import Results
from dtbench.results.stats import summarize


def trial_rows(results: Results) -> list[dict[str, Any]]:
    """One row per trial of each tuned cell, over the newest attempt of its runs; empty without any."""
    return [row for result in results.cells.values() for row in _rows(result)]


def _rows(result: CellResult) -> list[dict[str, Any]]:
    platform, config, arm = result.key
    records = [run.newest.record for run in result.runs if run.newest]
    searches = [r.measured.search for r in records if r.measured and r.measured.search]
    rows: dict[str, list[dict[str, Any]]] = {}
    for search in searches:
        for trial in search:
            rows.setdefault(settings_text(trial["settings"]), []).append(trial)
    return [
        {
            "platform": platform,
            "config": config,
            "arm": arm,
            "settings": settings,
            "tokens_per_s": summary.median if (summary := summarize(t["tokens_per_s"] for t in trials)) else None,
            "kept": sum(bool(t["kept"]) for t in trials),
            "runs": len(trials),
            "outcomes": sorted({t["outcome"] for t in trials}),
        }
        for settings, trials in rows.items()
    ]


def settings_text(settings: dict[str, Any]) -> str:
    """Settings in one line; the empty override is the config as given."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items()) or "as given"
