"""The time left follows the rate of the last minutes."""

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from depthrate.orchestrator.launch import display
from depthrate.orchestrator.launch.display import LaunchWatcher
from tests.support.clock import Clock


def pack(estimate: float) -> Any:
    return SimpleNamespace(trials=(SimpleNamespace(params={"depth": 2}),), estimate=estimate)


def seconds_left(monkeypatch: pytest.MonkeyPatch, estimates: list[float], ends: list[float], now: float) -> float:
    """Return the time left at `now` if packs with these estimates end at these times, one after another."""
    clock = Clock()
    monkeypatch.setattr(display.time, "monotonic", clock)
    monkeypatch.setattr(display, "estimated_wall_s", lambda pack, task: pack.estimate)
    packs = [pack(estimate) for estimate in estimates]
    checked = SimpleNamespace(trials=[p.trials[0] for p in packs], task=SimpleNamespace(fused=True))
    watcher = LaunchWatcher(SimpleNamespace(checked=checked, packs=packs, done=set()), Console(quiet=True))  # type: ignore[arg-type]
    left = None
    while clock.now < now:
        clock.sleep(1.0)
        queued = [p for p, end in zip(packs, ends, strict=True) if end > clock.now]
        progress = SimpleNamespace(packs_queued=queued, packs_submitted=[], packs_running=[])
        left = watcher._seconds_left(progress)  # type: ignore[arg-type]
    assert left is not None
    return left


def test_slower_packs_change_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [float(t) for t in range(1, 101)] + [100.0 + 10 * t for t in range(1, 101)]  # 1 per s, then 1 per 10 s
    assert seconds_left(monkeypatch, [1.0] * 200, ends, now=600) == pytest.approx(500, rel=0.1)


def test_wrong_estimates_do_not_dominate(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [90 / 27 * (i + 1) for i in range(27)] + [90 + 1.4 * i for i in range(135)]
    assert 185 / 2 < seconds_left(monkeypatch, [12.0] * 27 + [1.0] * 135, ends, now=90) < 185 * 2
