"""Trials of an earlier version of their task stay readable: by name, everything that reads shows them and says so."""

from pathlib import Path

import yaml

from depthrate.tasks.supervised.task import COLLAPSE
from tests.support.here import TINY, answer, printed

GRID = {"grid": {"depth": [2, 3, 4, 5]}, "seeds": 3, "fit": [{"metric": "nc1", "x": "depth"}]}
MESSAGE = "12 of version {}; this is version {}"


def test_a_sweep_by_name_has_the_trials_of_its_launch(tmp_path: Path, monkeypatch) -> None:
    path, store = tmp_path / "tiny.yaml", str(tmp_path / "store")
    path.write_text(yaml.safe_dump(TINY | GRID))
    printed("run", path, "--store", store, "--workers", 1)
    former = answer("fit", "tiny", "--store", store)
    assert former and "earlier versions" not in printed("fit", "tiny", "--store", store)
    version = COLLAPSE.version
    monkeypatch.setattr(COLLAPSE, "version", version + 1)
    assert answer("fit", "tiny", "--store", store) == former
    message = MESSAGE.format(version, version + 1)
    assert message in printed("fit", "tiny", "--store", store)
    page = tmp_path / "report.html"
    assert message in printed("report", "tiny", "--store", store, "-o", page) + page.read_text()
    (state,) = answer("status", "--store", store)
    assert (state["num_trials"], state["ok"]) == (12, 12)
    # whatever trains has the current version
    for reference in ("tiny", path):
        assert "12 trials, 0 done, 12 to run" in " ".join(printed("plan", reference, "--store", store).split())
