"""`engine` in a sweep: how trials are run, and nothing of what they are."""

import pytest

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import load_sweep, sweep_of_spec
from depthrate.tasks.interface import Engine

BODY = "name: s\ntask: collapse\nparams: {arch: rn1, depth: 2}\n"


@pytest.mark.parametrize("engine", list(Engine))
def test_it_changes_no_trial(engine, tmp_path):
    plain, path = tmp_path / "plain.yaml", tmp_path / "sweep.yaml"
    plain.write_text(BODY)
    path.write_text(BODY + f"engine: {engine.value}\n")
    sweep = load_sweep(str(path))
    assert sweep.engine is engine and sweep_of_spec(sweep.spec()) == sweep
    assert expand(sweep) == expand(load_sweep(str(plain)))
    assert load_sweep(str(plain), {"engine": engine.value}) == sweep


def test_a_sweep_that_says_nothing_keeps_its_hash():
    spec = {"name": "s", "task": "collapse", "params": {"arch": "rn1", "depth": 2}}
    assert "engine" not in sweep_of_spec(spec).spec()
    assert sweep_of_spec({**spec, "engine": "auto"}).spec_hash() == sweep_of_spec(spec).spec_hash()


@pytest.mark.parametrize("given", ["fast", 3, ["eager"]])
def test_others_are_refused(given):
    with pytest.raises(SweepError, match=r"engine is .*, expected one of auto, native, eager, compiled"):
        sweep_of_spec({"name": "s", "task": "collapse", "engine": given})
