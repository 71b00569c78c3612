"""The clock: parts of start-up."""

import time

import pytest

from harness.measure.clock import Laps


def test_start_up_parts_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([12.0, 15.5, 15.5, 20.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now_s))
    laps = Laps(10.0)
    for part in ("import", "build", "gate", "build"):
        laps.end(part)
    assert laps.seconds == {"import": 2.0, "build": 8.0, "gate": 0.0}
    assert sum(laps.seconds.values()) == 20.0 - 10.0
