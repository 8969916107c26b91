"""What is watched goes on where the store is away for a moment."""

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.cli.commands import status
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import load_sweep
from tests.support.here import TINY


def break_off(monkeypatch: pytest.MonkeyPatch, module: str, name: str, looks: set[int]) -> None:
    """Let a function fail as a store does that is away, at these calls."""
    function, calls = getattr(importlib.import_module(module), name), itertools.count()

    def broken(*given: Any, **more: Any) -> Any:
        if next(calls) in looks:
            raise ConnectionError("Connection reset by peer")
        return function(*given, **more)

    monkeypatch.setattr(f"{module}.{name}", broken)


@pytest.mark.slow
def test_watching_survives_an_unreachable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Exception):
        pass

    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise Enough

    (sweep := tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    store = Store(str(tmp_path / "store"))
    CliRunner().invoke(app, ["run", str(sweep), "--store", store.url])
    wider = check_sweep(load_sweep(str(sweep), {"depth": [2, 3, 17]}))
    planned = {"wider": [trial.trial_id for trial in wider.trials]}
    monkeypatch.setattr(status, "planned_trials", lambda *given: planned)
    monkeypatch.setattr(status.time, "sleep", sleep)
    break_off(monkeypatch, "depthrate.orchestrator.api.status", "take_snapshot", {1})
    words = ["status", "wider", "--store", store.url, "--watch", "--json"]
    shown = CliRunner().invoke(app, words)
    assert isinstance(shown.exception, Enough), shown.output
    assert shown.stdout.count('"pending"') == 2 and shown.stderr.count("Retrying") == 1
    break_off(monkeypatch, "depthrate.orchestrator.api.status", "take_snapshot", {0})
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1 and "ConnectionError: Connection reset by peer" in shown.stderr
