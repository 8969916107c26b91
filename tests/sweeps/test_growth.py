"""A task that gains a parameter keeps its trials: they are the trials of before wherever its value is what was before."""

import copy
import dataclasses
import json

import pytest

from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import load_sweep, sweep_of_spec
from depthrate.sweeps.packing import pack_trials
from depthrate.sweeps.studies import make_studies
from depthrate.tasks.loading import load_task
from depthrate.tasks.parameters import Parameter, ParameterError, ParameterSchema
from depthrate.tasks.registry import registered_tasks
from tests.support.here import answer, printed
from tests.support.trial_ids import trial_id_of

COLLAPSE = registered_tasks()["collapse"]
TEMPERATURE = Parameter(name="temperature", kind="float", default=1e-5, minimum=0, added_later=True)
PHASES = Parameter(name="phases", kind="list[int]", default=None, nullable=True, added_later=True)


def grown(*parameters, task=COLLAPSE):
    """The task with more parameters, placed as they might be: not only at the end."""
    own = list(task.schema.values())
    changed = copy.copy(task)
    changed.schema = ParameterSchema([*own[:3], *parameters, *own[3:]])
    return changed


def ids(task, **spec):
    return [trial.trial_id for trial in expand(sweep_of_spec({"name": "x", "task": "collapse", **spec}), task)]


def fixed(**params):
    return {"params": {"arch": "rn2", "depth": 3, **params}}


@pytest.mark.parametrize("name", ["quickstart", "papers/mnist-rn1"])
def test_new_parameter_keeps_trials(name):
    sweep = load_sweep(name)
    before, after = expand(sweep, COLLAPSE), expand(sweep, grown(TEMPERATURE, PHASES))
    assert [trial.trial_id for trial in after] == [trial.trial_id for trial in before]
    assert all(trial.params["temperature"] == 1e-5 and trial.params["phases"] is None for trial in after)
    assert [trial.trial_id for trial in expand(sweep, COLLAPSE)] == [trial.trial_id for trial in before]


def test_golden_ids_of_a_grown_task():
    """If this fails, results with such parameters in every store lose their trials."""
    task = grown(TEMPERATURE, PHASES)
    assert ids(task, **fixed()) == ids(task, **fixed(temperature=1e-5, phases=None)) == ["712c2b8e69e2c217"]
    assert ids(task, **fixed(temperature=1e-3)) == ["4e02ef548e745b9b"]
    assert ids(task, **fixed(temperature=0)) == ids(task, **fixed(temperature=-0.0)) == ["955998bfefe98fd1"]
    assert ids(task, **fixed(phases=[1, 2])) == ["d6b2793302197d72"]
    assert ids(grown(TEMPERATURE), **fixed(temperature=1e-3)) == ["4e02ef548e745b9b"], "whatever else the task gains"


def test_other_values_are_other_trials():
    task = grown(TEMPERATURE, PHASES)
    found = ids(task, **fixed(), grid={"temperature": [1e-5, 1e-4, 0], "phases": [None, [], [1], [2]]}, seeds=3)
    assert len(found) == len(set(found)) == 36 and len(set(found) & set(ids(COLLAPSE, **fixed(), seeds=3))) == 3


def test_a_derived_value_counts_like_a_given_one():
    task = grown(TEMPERATURE)
    assert ids(task, **fixed(), derive={"temperature": "0.00003 / depth"}) == ids(COLLAPSE, **fixed())


def test_equal_is_not_the_same():
    assert trial_id_of("law", 1, {"a": True}, {"a": 1}) == trial_id_of("law", 1, {"a": True})
    assert trial_id_of("law", 1, {"a": 1}, {"a": 1}) == trial_id_of("law", 1, {})


def test_studies_are_those_of_before():
    search = {"objective": "nc1", "params": {"lr": {"low": 0.01, "high": 1, "log": True}}}

    def study_ids(task, **params):
        sweep = sweep_of_spec({"name": "x", "task": "collapse", **fixed(**params), "search": search})
        return [study.study_id for study in make_studies(sweep, task)]

    assert study_ids(COLLAPSE) == study_ids(grown(TEMPERATURE)) == study_ids(grown(TEMPERATURE), temperature=1e-5)
    assert study_ids(grown(TEMPERATURE), temperature=1e-4) != study_ids(COLLAPSE)


def test_packs_vary_only_in_fusible_parameters():
    spec = {**fixed(samples_per_class=5), "grid": {"temperature": [1e-5, 1e-4]}, "seeds": 2}
    fusible = dataclasses.replace(TEMPERATURE, fusible=True)
    for parameter, sizes in ((TEMPERATURE, [2, 2]), (fusible, [4])):
        task = grown(parameter)
        trials = expand(sweep_of_spec({"name": "x", "task": "collapse", **spec}), task)
        assert [len(pack.trials) for pack in pack_trials(trials, task)] == sizes


def test_new_parameter_has_its_old_default():
    with pytest.raises(ParameterError, match="'eps' is added and has no default"):
        Parameter(name="eps", kind="float", added_later=True)
    with pytest.raises(ParameterError, match="'eps' is -1, expected a number >= 0"):
        Parameter(name="eps", kind="float", default=-1, minimum=0, added_later=True)
    assert repr(Parameter(name="eps", kind="float", default=1, added_later=True).default) == "1.0"


LAW = """
import depthrate

@depthrate.task(version=1{added})
def law(*, depth: int{eps}, seed: int = 0):
    return {{"metrics": [{{"layer": depth, "nc1": depth**-1.0{use}}}]}}
"""


@pytest.fixture
def law(tmp_path):
    """Writes a user's task, as it was before or as it is with a parameter more."""

    def write(is_grown, added=', added=["eps"]', eps=", eps: float = 0"):
        parts = {"added": added, "eps": eps, "use": " + eps"} if is_grown else {"added": "", "eps": "", "use": ""}
        (tmp_path / "law.py").write_text(LAW.format(**parts))
        return f"{tmp_path / 'law.py'}:law"

    return write


def test_a_users_task_declares_what_it_gained(law):
    before = {"name": "x", "task": law(False), "grid": {"depth": [2, 3]}}
    old = [trial.trial_id for trial in expand(sweep_of_spec(before))]
    law(True)
    assert [trial.trial_id for trial in expand(sweep_of_spec(before))] == old
    both = expand(sweep_of_spec(before | {"grid": {"depth": [2, 3], "eps": [0, 0.5]}}))
    assert [t.trial_id for t in both if t.params["eps"] == 0] == old and len({t.trial_id for t in both}) == 4
    law(True, added="")
    assert not set(old) & {trial.trial_id for trial in expand(sweep_of_spec(before))}, "undeclared, it is another task"


@pytest.mark.parametrize(
    ("added", "eps", "message"),
    [
        (', added=["eps"]', ", eps: float", "'eps' is added and has no default"),
        (', added=["esp"]', ", eps: float = 0", "unknown parameter 'esp' in added of task 'law' .did you mean 'eps'"),
        (', added=["eps"]', ", eps: float = 'none'", "parameter 'eps' is 'none', expected a number"),
    ],
)
def test_what_is_declared_wrongly_is_refused(law, added, eps, message):
    with pytest.raises(ParameterError, match=message):
        load_task(law(True, added, eps))


@pytest.mark.slow
def test_only_new_trials_run(law, tmp_path):
    sweep, store = tmp_path / "s.yaml", ["--store", str(tmp_path / "store")]

    def run(task, grid, *fit, options=()):
        sweep.write_text(json.dumps({"name": "s", "task": task, "grid": grid, "fit": fit}))
        printed("run", sweep, *store, *options)
        query = "select depth, nc1, attempt_id from results join trials using (trial_id, depth) order by nc1"
        return answer("query", query, *store)

    depths = [2, 3, 5]
    before = run(law(False), {"depth": depths})
    grown_task = law(True)
    assert run(grown_task, {"depth": depths}, options=["--keep-results"]) == before, "nothing ran again"
    requests = {"metric": "nc1", "by": ["eps"]}, {"metric": "nc1", "where": "eps = 0"}
    after = run(grown_task, {"depth": depths, "eps": [0, 1]}, *requests)
    assert [row for row in after if row["nc1"] < 1] == before and len(after) == 6
    fits = answer("fit", sweep, *store)
    assert {row["by"]: row["n_trials"] for row in fits} == {'{"eps": 0.0}': 3, '{"eps": 1.0}': 3, "{}": 3}
    shown = answer("query", "select distinct eps from results", *store)
    assert {row["eps"] for row in shown} == {None, 1.0}, "who asks without the task sees what was stored"
