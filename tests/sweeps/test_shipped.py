"""Every sweep that comes with depthrate is found by its name and expands into trials that can run."""

import pytest

from depthrate.sweeps.sweep_file import SHIPPED, find_sweep_file, load_sweep

NAMES = sorted(file.relative_to(SHIPPED).with_suffix("").as_posix() for file in SHIPPED.rglob("*.yaml"))
PAPERS = [name for name in NAMES if name.startswith("papers/")]
RATES = [name for name in PAPERS if name.count("/") == 1]
"""Of P1, whose rows share their settings; a folder below papers is another paper's."""
QUICK = ("papers/lowrank/figure2-top",)
"""Minutes on two cores at the paper's own settings."""


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_sweep_expands(name):
    sweep = load_sweep(name)
    assert find_sweep_file(name).stem == sweep.name
    trials = sweep.expand()
    assert len({trial.trial_id for trial in trials}) == len(trials)
    assert sweep.fit or sweep.figures or not sweep.grids, "a sweep over something asks how it depends on that"
    assert len(trials) > 2 or sweep.search or sweep.figures, "a search proposes its trials as it goes"


@pytest.mark.parametrize("name", [name for name in PAPERS if not name.endswith("-small") and name not in QUICK])
def test_a_sweep_of_a_paper_has_a_small_variant(name):
    assert f"{name}-small" in PAPERS


@pytest.mark.parametrize("name", [name for name in RATES if not name.endswith("-small")])
def test_a_row_of_the_paper_has_its_settings(name):
    trials = load_sweep(name).expand()
    assert sorted({t.params["depth"] for t in trials}) == [2, 3, 5, 8, 13, 21, 34]
    assert {t.params["seed"] for t in trials} == set(range(5))
    for params in (t.params for t in trials):
        assert (params["width"], params["epochs"], params["loss"]) == (64, 5000, "ce")
        assert params["lr"] == (0.001 if params["dataset"] == "imdb" else 0.005)
        expected = {"scaled": 0.005 / params["depth"], "constant": 0.0025}.get(name.rpartition("-")[2])
        if expected is None:
            expected = 0.005 / params["depth"] if params["arch"] == "t22" else 0.005
        assert params["weight_decay"] == pytest.approx(expected)
